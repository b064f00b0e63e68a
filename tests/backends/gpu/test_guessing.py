"""Passes that guess on the GPU backend, in the interpreter, beside steps of the model."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import told_answers
from interpreted_runner import open_runner
from tiny_shape import TINY

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.core import EngineCore
from zse.engine.drafting.opening import drafter_of_layers
from zse.engine.drafting.speculator import Speculator
from zse.engine.request import Request, SamplingParams
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.decoder import forward_of
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.engine.stats import SpeculationCounts
    from zse.models.runner import ModelRunner

GREEDY = SamplingRow(temperature=0.0)
PROMPT = [5, 17, 70, 33]
SHAPE = {**TINY, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def path(make_pair: Callable[..., Any]) -> Path:
    return make_pair("qwen2", "int8", **SHAPE).path


def one_step(tokens: list[int], start: int) -> StepBatch:
    one = SequenceChunk(0, tokens, start, (2, 5), kind_of(len(tokens)))
    return StepBatch(chunks=[one], sampling=[[GREEDY]])


def first_layers(runner: ModelRunner, count: int) -> Any:
    return forward_of(replace(runner.spec, layers=runner.spec.layers[:count]))


def test_first_layers_guess_what_torch_guesses_and_steps_go_on_as_if_nobody_had(path: Path) -> None:
    found: list[list[int]] = []
    sizes: dict[str, Any] = {"num_blocks": 8, "max_sequences": 2, "max_batch_tokens": 16}
    reference = load_runner(path, load_options(device="torch", threads=1, **sizes))
    for runner in (open_runner(path, exact_activations=True), reference):
        with closing(runner):
            few = first_layers(runner, 1)
            told = [runner.execute(one_step(PROMPT, 0))[0][0].token_id]
            for position in (4, 5):
                ahead = runner.submit(one_step(told[-1:], position))
                guesses = [runner.guess(one_step([token], position + 1), few) for token in range(4)]
                told += [answer[0][0].token_id for answer in guesses]  # before the step is read
                told.append(ahead.wait()[0][0].token_id)
            found.append(told)
    assert found[0] == found[1]


def test_drafts_by_first_layers_change_no_answer_where_steps_are_sent_ahead(path: Path) -> None:
    sizes: dict[str, Any] = {"num_blocks": 8, "max_batch_tokens": 16, "deterministic": True}

    def answered(speculate: str) -> tuple[object, SpeculationCounts]:
        params = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
        request = Request(request_id="a", prompt_token_ids=PROMPT, params=params)
        runner = open_runner(path, **sizes)
        speculator = Speculator(
            drafter_of_layers(runner, 1), itertools.count().__next__, writes_ahead=True
        )
        options = load_options(**sizes, max_sequences=2, speculate=speculate)
        begin = None if speculate == "off" else lambda: speculator
        with closing(EngineCore(runner, options, begin_speculation=begin)) as core:
            return told_answers(core, [request]), core.stats().speculation

    expected, _ = answered("off")
    found, counts = answered("early-exit")
    assert found == expected
    assert counts.draft_tokens > 0
