"""Drafts by a model's own parts: answers are to the bit those without, whatever is guessed."""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import (
    form_compiler,
    request_in_a_form,
    requests_with_one_beginning,
    told_answers,
)
from guessing_models import make_guessing_model
from model_pairs import make_pair

from zse.backends.states import MOST_DRAFT_STATES
from zse.engine.core import EngineCore
from zse.engine.drafting.choosing import speculation_of
from zse.engine.drafting.opening import collector_of, drafter_of_head, drafter_of_layers
from zse.engine.drafting.speculator import Speculator
from zse.format.reader import ZSEReader
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guessing_models import GuessingModel

    from zse.engine.request import Request
    from zse.engine.stats import EngineStats

__all__ = ["make_pair"]

SIZES = {"num_blocks": 40, "block_size": 4, "max_sequences": 3, "max_batch_tokens": 24}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 2},
    "sampled": {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "seed": 5, "n": 2},
    "penalties": {"repetition_penalty": 1.05, "frequency_penalty": 0.01, "min_tokens": 8},
}

CASES = [("greedy", "torch"), *((way, "cpu") for way in WAYS)]


@pytest.fixture(scope="module")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GuessingModel]:
    """Return a function that makes a model whose head often guesses right."""
    made: dict[str, GuessingModel] = {}

    def make(family: str = "qwen3_5", quantization: str = "int8") -> GuessingModel:
        if (key := f"{family}-{quantization}") not in made:
            folder = tmp_path_factory.mktemp("guessing")
            made[key] = make_guessing_model(folder, family, quantization, knows=True)
        return made[key]

    return make


def requests_in(way: str, num_tokens: int = 30) -> list[Request]:
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True}
    return requests_with_one_beginning(**params | WAYS[way])


class Opened:
    """A model with drafts of its own that always pay, as every step takes one tick."""

    def __init__(self, path: Path, speculate: str, num_layers: int = 0, **sizes: Any) -> None:
        values: dict[str, Any] = {"device": "cpu", "threads": 1, **SIZES, **sizes}
        self._reader = ZSEReader(path)
        options = load_options(**values, speculate=speculate)
        runner = load_runner(self._reader, options)
        collect = None
        if speculate == "off":
            self.core = EngineCore(runner, options)
            return
        if speculate == "mtp":
            drafter = drafter_of_head(runner, self._reader, options, load_settings())
            collect = collector_of(runner.spec.hidden_size)
        else:
            drafter = drafter_of_layers(runner, num_layers)
        self.drafter: Any = drafter
        clock = itertools.count()
        self.core = EngineCore(
            runner,
            options,
            begin_speculation=lambda: Speculator(
                drafter, clock.__next__, writes_ahead=speculate == "early-exit"
            ),
            collect_states=collect,
        )

    def answers(self, requests: list[Request]) -> dict[tuple[str, int], list[Any]]:
        return told_answers(self.core, requests)

    def close(self) -> None:
        self.core.close()
        self._reader.close()


def stats_of_equal(
    path: Path, speculate: str, requests: Callable[[], list[Request]], **sizes: Any
) -> EngineStats:
    """Answer with drafts and without, and hold one against the other."""
    with closing(Opened(path, "off", **sizes)) as plain:
        without = plain.answers(requests())
    with closing(Opened(path, speculate, **sizes)) as guessing:
        assert guessing.answers(requests()) == without
        return guessing.core.stats()


@pytest.mark.parametrize(("way", "device"), CASES)
def test_a_head_changes_no_answer_and_some_of_its_guesses_stand(
    way: str, device: str, make_model: Callable[..., GuessingModel]
) -> None:
    path = make_model().path
    stats = stats_of_equal(path, "mtp", partial(requests_in, way), device=device)
    assert stats.speculation.draft_tokens > stats.speculation.accepted_tokens > 0


def test_a_head_begins_behind_a_prefix_that_was_found(
    make_model: Callable[..., GuessingModel],
) -> None:
    sizes = {"exact_activations": True, "kv_dtype": "fp32"}
    with closing(Opened(make_model().path, "mtp", **sizes)) as opened:
        first, again = (opened.answers(requests_in("greedy")) for _ in range(2))
        stats = opened.core.stats()
    assert {key: [one[0] for one in told] for key, told in first.items()} == {
        key: [one[0] for one in told] for key, told in again.items()
    }
    assert stats.prefix_hit_tokens > 0
    assert stats.speculation.accepted_tokens > stats.generated_tokens // 3


def test_a_head_goes_on_behind_preemptions_and_prompts_in_pieces(
    make_model: Callable[..., GuessingModel],
) -> None:
    sizes = {"num_blocks": 26, "max_batch_tokens": 9}
    path = make_model().path
    stats = stats_of_equal(path, "mtp", partial(requests_in, "greedy", 40), **sizes)
    assert stats.preemptions > 0
    assert stats.speculation.accepted_tokens > 0


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_a_head_that_knows_nothing_changes_no_answer_of_its_family(
    family: str, tmp_path: Path
) -> None:
    path = make_guessing_model(tmp_path, family, "bf16").path
    stats = stats_of_equal(path, "mtp", partial(requests_in, "greedy", 12), deterministic=True)
    assert stats.speculation.draft_tokens > 0


@pytest.mark.parametrize(("way", "device"), CASES)
def test_first_layers_change_no_answer(way: str, device: str, random_zse: Path) -> None:
    stats = stats_of_equal(
        random_zse, "early-exit", partial(requests_in, way), device=device, num_layers=1
    )
    assert stats.speculation.draft_tokens > 0


@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_first_layers_with_windows_change_no_answer(
    family: str, make_pair: Callable[..., Any]
) -> None:
    own = {"sliding_window": 9} if family == "mistral" else {}
    pair = make_pair(family, "fp32", eos_token_id=None, **own)
    stats = stats_of_equal(pair.path, "early-exit", partial(requests_in, "greedy"), num_layers=1)
    assert stats.speculation.draft_tokens > 0


@pytest.mark.parametrize("speculate", ["mtp", "early-exit"])
def test_the_options_open_who_guesses(
    speculate: str, random_zse: Path, make_model: Callable[..., GuessingModel]
) -> None:
    path = make_model().path if speculate == "mtp" else random_zse
    options = load_options(device="cpu", threads=1, **SIZES, speculate=speculate)
    with ZSEReader(path) as reader:
        runner = load_runner(reader, options)
        speculation = speculation_of(runner, reader, options, load_settings())
        assert speculation is not None
        assert (speculation.collect_states is not None) == (speculate == "mtp")
        core = EngineCore(
            runner,
            options,
            begin_speculation=speculation.begin,
            collect_states=speculation.collect_states,
        )
        told_answers(core, requests_in("greedy"))
        core.close()


def test_answers_in_a_form_are_the_same_with_first_layers(random_zse: Path) -> None:
    compiler = form_compiler(random_zse)

    def requests() -> list[Request]:
        return [request_in_a_form(compiler, 30)]

    stats = stats_of_equal(random_zse, "early-exit", requests, num_layers=1)
    assert stats.speculation.draft_tokens > 0


def test_who_is_cancelled_leaves_no_slot_and_no_state_behind(
    make_model: Callable[..., GuessingModel],
) -> None:
    with closing(Opened(make_model().path, "mtp")) as opened:
        core = opened.core
        slots = core.runner._backend._memory.states.slots
        for round_number in range(3):
            for request in requests_in("sampled"):
                core.add_request(request)
            for _ in range(6 + round_number):
                core.step()
            assert core.stats().speculation.draft_tokens > 0
            for request in requests_in("sampled"):
                core.abort(request.request_id)
            while core.has_work:
                core.step()
            core.check_consistency()
            assert len(set(slots._own) | set(slots._free)) == len(slots._own) + len(slots._free)
            assert len(slots._free) == MOST_DRAFT_STATES
            assert core.stats().kv_blocks_used == 0
        assert opened.drafter._slow._followed == {}
        assert len(opened.drafter._slow._free_slots) == SIZES["max_sequences"]
