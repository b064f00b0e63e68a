"""Drafts on a GPU: states that go back behind wrong ones, first layers and heads that guess."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import told_answers
from guessing_models import make_guessing_model
from medusa_folders import head_tensors, write_checkpoint, write_heads

from zse.backends import begin_arrival
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.core import EngineCore
from zse.engine.drafting.opening import (
    collector_of,
    drafter_of_head,
    drafter_of_layers,
    drafter_of_medusa,
    memory_of_head,
)
from zse.engine.drafting.speculator import Speculator
from zse.engine.request import Request, SamplingParams
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.options import load_options
from zse.quantize.convert import convert_model
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.backends.types import SampledToken
    from zse.engine.stats import SpeculationCounts

pytestmark = pytest.mark.gpu
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 4,
}
PROMPT = [(7 * place) % 997 for place in range(40)]
NEAR = 0.2
"""Log-probabilities that rows of a check and single rows differ by at most: they round alike but
for the order of sums."""


def hybrid_shape(head_dim: int) -> dict[str, Any]:
    """Return the shape of a model with linear attention, whose heads are so wide."""
    return {
        **SHAPE,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "num_hidden_layers": 3,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
    }


def opened(path: Path, **values: Any) -> ModelRunner:
    settings = load_settings()
    values = {"num_blocks": 64, "max_sequences": 8, **values}
    options = load_options(device="cuda", kernels=settings.serve.load.device.kernels, **values)
    return load_runner(path, options, cache_dir=settings.cache_dir)


def row(step: int = 0) -> SamplingRow:
    return SamplingRow(temperature=0.0, step=step, logprobs=5)


def chunk(tokens: list[int], start: int, slot: int, kind: Any = None) -> SequenceChunk:
    blocks = range(slot * 8, slot * 8 + 8)
    return SequenceChunk(slot, tokens, start, blocks, kind or kind_of(len(tokens)))


def answer(runner: ModelRunner, one: SequenceChunk, *others: SequenceChunk) -> list[SampledToken]:
    """Return what comes of a chunk, beside others in the same step."""
    chunks = (one, *others)
    rows = [[row()] * (len(c.token_ids) if c.kind == "verify" else 1) for c in chunks]
    return list(runner.execute(StepBatch(chunks=chunks, sampling=rows))[0])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_states_go_back_behind_wrong_drafts(head_dim: int, make_pair: Callable[..., Any]) -> None:
    pair = make_pair("qwen3_5", "int8", **hybrid_shape(head_dim))
    # Else steps with a prompt beside them round otherwise: a state gathers that, as a wrong one.
    with closing(opened(pair.path, speculate="suffix", exact_activations=True)) as runner:
        alone = answer(runner, chunk(PROMPT, 0, 0))
        for position in range(len(PROMPT), len(PROMPT) + 24):
            alone += answer(runner, chunk([alone[-1].token_id], position, 0))
        for num_right, beside in itertools.product((0, 1, 4), (False, True)):
            place = 0
            answer(runner, chunk(PROMPT, 0, 1))
            while place < 16:
                known = [token.token_id for token in alone[place : place + 1 + num_right]]
                wrong = [(alone[place + num_right + 1].token_id + 1) % 1000, 5]
                check = chunk([*known, *wrong], len(PROMPT) + place, 1, "verify")
                other = [chunk(PROMPT[:9], 0, 2)] if beside else []
                found = answer(runner, check, *other)
                place += 1
                assert len(found) >= 1
                for token, expected in zip(found, alone[place:], strict=False):
                    is_sure = expected.top[0][1] - expected.top[1][1] > 2 * NEAR
                    assert token.token_id == expected.token_id or not is_sure
                    assert dict(token.top).get(expected.token_id, -99.0) == pytest.approx(
                        expected.logprob, abs=NEAR
                    )
                place += num_right
                if len(found) != 1 + num_right:  # two tokens were almost equally likely
                    break
        assert len(runner._backend._draft_states._slots._free) == runner.most_drafts


def test_first_layers_change_no_answer_where_every_token_is_computed_alone(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("qwen2", "int4", **SHAPE).path

    def answered(speculate: str) -> tuple[object, SpeculationCounts]:
        runner = opened(path, deterministic=True)
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2)
        requests = [
            Request(request_id=str(i), prompt_token_ids=PROMPT[i:], params=params) for i in range(3)
        ]
        speculator = Speculator(
            drafter_of_layers(runner, 2), itertools.count().__next__, writes_ahead=True
        )
        options = load_options(num_blocks=64, max_sequences=8, block_size=32, deterministic=True)
        begin = None if speculate == "off" else lambda: speculator
        with closing(EngineCore(runner, options, begin_speculation=begin)) as core:
            return told_answers(core, requests), core.stats().speculation

    expected, _ = answered("off")
    found, counts = answered("early-exit")
    assert found == expected
    assert counts.draft_tokens > 0


def answers_with(
    path: Path, speculate: str, drafter_of: Callable[..., Any] | None = None
) -> tuple[object, SpeculationCounts]:
    """Answer three requests, with drafts of a model's own that always pay where somebody guesses."""
    settings = load_settings()
    options = load_options(
        device="cuda",
        deterministic=True,
        num_blocks=64,
        max_sequences=8,
        speculate=speculate,
        kernels=settings.serve.load.device.kernels,
    )
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    requests = [
        Request(request_id=str(i), prompt_token_ids=PROMPT[i:], params=params) for i in range(3)
    ]
    with ZSEReader(path) as reader:
        runner = load_runner(reader, options, cache_dir=settings.cache_dir)
        begin = collect = None
        if drafter_of is not None:
            drafter = drafter_of(runner, reader, options, settings)
            speculator = Speculator(drafter, itertools.count().__next__)
            begin, collect = lambda: speculator, collector_of(runner.spec.hidden_size)
        core = EngineCore(runner, options, begin_speculation=begin, collect_states=collect)
        with closing(core):
            return told_answers(core, requests), core.stats().speculation


def test_a_head_guesses_from_the_states_of_steps_and_changes_no_answer(tmp_path: Path) -> None:
    shape = {**hybrid_shape(64), "layer_types": ["full_attention"] * 3}
    path = make_guessing_model(tmp_path, "qwen3_5", "int8", knows=True, **shape).path
    expected, _ = answers_with(path, "off")
    found, counts = answers_with(path, "mtp", drafter_of_head)
    assert found == expected
    assert counts.accepted_tokens > 8  # by chance one of 1,000 drafts stands


def test_a_model_leaves_its_head_memory_where_both_take_all_they_can(tmp_path: Path) -> None:
    path = make_guessing_model(tmp_path, "qwen3_5", "int8", **hybrid_shape(64)).path
    settings = load_settings()
    options = load_options(
        device="cuda", speculate="mtp", kernels=settings.serve.load.device.kernels
    )
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
        arrival = begin_arrival(options, reader)
        assert arrival is not None
        arrival.set_aside(memory_of_head(reader, spec))
        cache_dir = settings.cache_dir
        with closing(
            load_runner(reader, options, cache_dir=cache_dir, spec=spec, arrival=arrival)
        ) as runner:
            runner.settle()
            drafter_of_head(runner, reader, options, settings).close()


def test_heads_of_medusa_guess_and_change_no_answer(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **SHAPE)
    heads = write_heads(tmp_path / "heads", head_tensors(checkpoint, 3, 2))
    path = tmp_path / "model.zse"
    convert_model(checkpoint, path, "int4", allow_no_tokenizer=True, medusa=heads, device="cpu")
    expected, _ = answers_with(path, "off")
    found, counts = answers_with(path, "medusa", drafter_of_medusa)
    assert found == expected
    assert counts.draft_tokens > 0
