"""The engine of an encoder: which texts go into a step, in which order, and what ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zse.engine.encoder_core import EncoderCore
from zse.engine.reading import PromptQuery
from zse.engine.request import Request, SamplingParams
from zse.engine.step_clock import StepLog
from zse.errors import ContextLengthError, InvalidParameterError, UsageError
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Sequence

QUERY = PromptQuery(pooling="mean", generates=False)


class CountingRunner:
    """Makes of each text a vector of its length; remembers what was computed together."""

    vocab_size, max_position, is_encoder = 100, 64, True
    spec = SimpleNamespace(head=SimpleNamespace(classifier=None, pooling="mean"))

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.told: list[tuple[str, list[int | None]]] = []
        self.is_closed = False

    def vectors(
        self, texts: Sequence[Sequence[int]], pooling: str, second_from: list[int | None]
    ) -> list[Sequence[float]]:
        self.steps.append([len(text) for text in texts])
        self.told.append((pooling, second_from))
        return [[float(len(text))] for text in texts]

    def rest(self, free_blocks: Sequence[int]) -> None:
        self.rested_with = free_blocks

    def close(self) -> None:
        self.is_closed = True


def make_core(**options: Any) -> tuple[EncoderCore, CountingRunner]:
    runner: Any = CountingRunner()
    return EncoderCore(runner, load_options(**options)), runner


def add(core: EncoderCore, name: str, length: int, **fields: Any) -> None:
    request = {"params": SamplingParams(max_tokens=1), "query": QUERY, **fields}
    core.add_request(Request(request_id=name, prompt_token_ids=[1] * length, **request))


def finish(core: EncoderCore) -> dict[str, float]:
    found: dict[str, float] = {}
    while core.has_work:
        for event in core.step():
            assert event.finish_reason == "length"
            assert event.report is not None
            assert event.report.vector is not None
            found[event.request_id] = event.report.vector[0]
    return found


def test_an_engine_of_an_encoder_rests_and_goes_on() -> None:
    core, runner = make_core()
    add(core, "before", 3)
    assert finish(core) == {"before": 3}
    core.rest()
    assert runner.rested_with == ()
    add(core, "after", 4)
    assert finish(core) == {"after": 4}


def test_as_many_texts_as_the_budget_holds_are_computed_together_and_one_at_least() -> None:
    core, runner = make_core(max_batch_tokens=32)
    for index, length in enumerate((10, 20, 5, 40, 1)):
        add(core, str(index), length)
    assert core.stats().num_waiting == 5
    assert finish(core) == {"0": 10, "1": 20, "2": 5, "3": 40, "4": 1}
    assert runner.steps == [[10, 20], [5], [40], [1]]
    assert (core.stats().steps, core.stats().computed_tokens) == (4, 76)
    assert core.stats().num_waiting == 0


def test_texts_of_a_step_are_at_most_as_many_as_may_run() -> None:
    core, runner = make_core(max_sequences=3)
    for index in range(4):
        add(core, str(index), 2)
    core.limit_running(2)
    finish(core)
    assert runner.steps == [[2, 2], [2, 2]]


def test_texts_that_pool_otherwise_wait_for_a_step_of_their_own() -> None:
    core, runner = make_core()
    add(core, "a", 2)
    add(core, "b", 3, query=PromptQuery(pooling="first", generates=False), second_from=1)
    add(core, "c", 4)
    finish(core)
    assert runner.told == [("mean", [None]), ("first", [1]), ("mean", [None])]


def test_tenants_take_turns_and_priority_goes_first() -> None:
    core, runner = make_core(max_batch_tokens=8)
    for index in range(3):
        add(core, f"many-{index}", 8, tenant="many")
    add(core, "few", 7, tenant="few")
    add(core, "urgent", 6, priority=5)
    finish(core)
    assert runner.steps[:3] == [[6], [8], [7]]


def test_what_is_aborted_is_told_so_and_not_computed() -> None:
    core, runner = make_core()
    add(core, "a", 2)
    add(core, "b", 3)
    core.abort("a")
    core.abort("a")
    core.abort("unknown")
    events = core.step()
    assert [(each.request_id, each.finish_reason) for each in events] == [
        ("a", "abort"),
        ("b", "length"),
    ]
    assert runner.steps == [[3]]
    assert not core.has_work


def test_who_asks_is_told_of_the_start_and_of_the_step() -> None:
    core, _ = make_core()
    started, log = [], StepLog()
    add(core, "a", 5, on_start=lambda: started.append("a"), steps=log)
    assert not started
    core.step()
    assert started == ["a"]
    assert [(step.reads_prompt, step.num_tokens) for step in log.steps] == [(True, 5)]


def test_what_cannot_be_computed_is_refused_before_it_waits() -> None:
    core, _ = make_core(max_context=16)
    assert core.capacity_tokens == 16
    add(core, "whole", 16)
    with pytest.raises(ContextLengthError):
        add(core, "long", 17)
    with pytest.raises(InvalidParameterError):
        add(core, "empty", 0)
    with pytest.raises(InvalidParameterError, match="writes no text"):
        add(core, "text", 3, query=None)
    with pytest.raises(InvalidParameterError, match="writes no text"):
        add(core, "told", 3, query=PromptQuery(pooling="mean"))
    with pytest.raises(UsageError, match="is running already"):
        add(core, "whole", 3)
    assert core.stats().num_waiting == 1


def test_a_classifier_scores_the_states_that_it_was_trained_on() -> None:
    core, runner = make_core()
    runner.spec = SimpleNamespace(head=SimpleNamespace(classifier=object(), pooling="first"))
    with pytest.raises(InvalidParameterError, match="pooled by 'first', not 'mean'"):
        add(core, "a", 3)


def test_closing_ends_what_waits_and_the_runner() -> None:
    core, runner = make_core()
    add(core, "a", 3)
    core.close()
    assert runner.is_closed
    assert not core.has_work
