"""What guesses on the GPU backend, in the interpreter: first layers, and heads by states."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_answers import told_answers
from guessing_models import make_guessing_model
from interpreted_runner import open_runner
from tiny_shape import TINY

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.core import EngineCore
from zse.engine.drafting.head_drafter import HeadDrafter
from zse.engine.drafting.opening import collector_of, drafter_of_layers
from zse.engine.drafting.speculator import Speculator
from zse.engine.request import Request, SamplingParams
from zse.errors import EngineError
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.decoder import forward_of
from zse.models.guess import model_of
from zse.models.runner import load_runner, spec_of
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
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
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


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a head that often guesses right."""
    shape = {**SHAPE, "layer_types": ["full_attention"] * 2}
    folder = tmp_path_factory.mktemp("guessing")
    return make_guessing_model(folder, "qwen3_5", "int8", knows=True, **shape).path


def states_of_steps(runner: ModelRunner) -> list[torch.Tensor]:
    """Return the states that a prompt, a single token, and a token with drafts leave."""
    rows, found = runner.spec.hidden_size, []
    steps = [(PROMPT, 0, "prefill"), ([9], 4, "decode"), ([8], 5, "decode"), ([3, 1], 6, "verify")]
    for tokens, start, kind in steps:
        room = memoryview(bytearray(4 * rows * len(tokens)))
        one = SequenceChunk(0, tokens, start, (2, 5), kind, states_to=room)
        asked = [GREEDY] * (len(tokens) if kind == "verify" else 1)
        runner.execute(StepBatch(chunks=[one], sampling=[asked]))
        found.append(torch.frombuffer(room, dtype=torch.float32).view(len(tokens), -1).clone())
    return found


def test_steps_leave_the_states_of_their_tokens_as_torch_does(guessing: Path) -> None:
    sizes: dict[str, Any] = {"num_blocks": 8, "max_sequences": 2, "max_batch_tokens": 16}
    reference = load_runner(guessing, load_options(device="torch", threads=1, **sizes))
    runner = open_runner(guessing, exact_activations=True, speculate="mtp")
    with closing(runner), closing(reference):
        assert runner.leaves_states
        for found, expected in zip(*map(states_of_steps, (runner, reference)), strict=True):
            assert float((found - expected).norm() / expected.norm()) < 2e-2


def test_a_head_guesses_from_states_and_changes_no_answer(guessing: Path) -> None:
    sizes = {"num_blocks": 8, "max_batch_tokens": 16, "deterministic": True}
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)

    def answered(speculate: str) -> tuple[object, SpeculationCounts]:
        request = Request(request_id="a", prompt_token_ids=PROMPT, params=params)
        runner = open_runner(guessing, **sizes, speculate=speculate)
        options = load_options(**sizes, max_sequences=2, speculate=speculate)
        begin = collect = None
        if speculate == "mtp":
            head = model_of(runner.spec, runner.spec.guesses[0])
            drafter = HeadDrafter(
                open_runner(guessing, spec=head, groups=("embed", "final", "mtp.0")),
                most_tokens=16,
                num_sequences=2,
                vocab_size=runner.vocab_size,
                close_file=int,
            )
            speculator = Speculator(drafter, itertools.count().__next__)
            begin, collect = lambda: speculator, collector_of(runner.spec.hidden_size)
        with closing(
            EngineCore(runner, options, begin_speculation=begin, collect_states=collect)
        ) as core:
            return told_answers(core, [request]), core.stats().speculation

    expected, _ = answered("off")
    found, counts = answered("mtp")
    assert found == expected
    assert counts.accepted_tokens > 0


def test_a_token_without_its_state_is_refused(guessing: Path) -> None:
    with ZSEReader(guessing) as reader:
        spec = spec_of(reader)
    head = open_runner(guessing, spec=model_of(spec, spec.guesses[0]))
    with closing(head), pytest.raises(EngineError, match="0 bytes of states; 512 are needed"):
        head.execute(one_step([4], 0))
