"""On a GPU, with --deterministic, a row has the same bits in every step that it can be in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zse.backends.types import SampledToken, SequenceChunk, StepBatch
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.gpu

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 3,
}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("qwen2", "int4", {}, {}),
    ("qwen2", "int4", {}, {"kv_dtype": "int8"}),
    ("qwen2", "int4", {}, {"prefill_precision": "16"}),
    ("qwen2", "int4", {}, {"exact_activations": True}),
    ("llama", "nf4", {}, {}),
    ("llama", "int8", {}, {}),
    ("llama", "bf16", {}, {}),
    ("llama", "mxfp4", {}, {}),
    ("qwen3", "int8", {}, {}),
    ("qwen3_moe", "int4", {}, {}),
]
BLOCKS_EACH = 16
NUM_SEQUENCES = 64
LENGTHS = (1, 3, 20, 45, 90)


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def runner(request: pytest.FixtureRequest, make_pair: Callable[..., Any]) -> Iterator[ModelRunner]:
    family, quantization, changes, options = request.param
    path = make_pair(family, quantization, **{**SHAPE, **changes}).path
    runner = load_runner(
        path,
        load_options(
            device="cuda",
            deterministic=True,
            num_blocks=BLOCKS_EACH * NUM_SEQUENCES,
            max_sequences=NUM_SEQUENCES,
            kernels=load_settings().serve.load.device.kernels,
            **options,
        ),
        cache_dir=load_settings().cache_dir,
    )
    yield runner
    runner.close()


def chunk(slot: int, tokens: list[int], start: int, kind: Any) -> SequenceChunk:
    blocks = range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH)
    return SequenceChunk(slot, tokens, start, blocks, kind)


def step(runner: ModelRunner, chunks: list[SequenceChunk]) -> list[list[SampledToken]]:
    """Compute chunks, of drafts with a row a token, of others with one for the last."""
    row = SamplingRow(temperature=0.0, logprobs=5)
    rows = [[row] * (len(one.token_ids) if one.kind == "verify" else 1) for one in chunks]
    return [list(told) for told in runner.execute(StepBatch(chunks=chunks, sampling=rows))]


def prompt_of(slot: int) -> list[int]:
    return [(slot * 31 + place * place) % 997 for place in range(LENGTHS[slot % len(LENGTHS)])]


def alone(runner: ModelRunner, slot: int, num_tokens: int) -> list[SampledToken]:
    """Answer a prompt with nobody else, one token a step; its cache is used for nothing else."""
    prompt = prompt_of(slot)
    told = step(runner, [chunk(slot, prompt, 0, "prefill")])[0]
    for place in range(len(prompt), len(prompt) + num_tokens - 1):
        told += step(runner, [chunk(slot, [told[-1].token_id], place, "decode")])[0]
    return told


def test_company_pieces_and_drafts_change_no_bit(runner: ModelRunner) -> None:
    answers = {slot: alone(runner, slot, 6) for slot in range(NUM_SEQUENCES)}
    slots = list(answers)
    for count in (5, NUM_SEQUENCES):
        some = slots[:count]
        pieces = {slot: max(1, len(prompt_of(slot)) // 3) for slot in some}
        step(runner, [chunk(s, prompt_of(s)[: pieces[s]], 0, "prefill") for s in some])
        rest = [s for s in some if pieces[s] < len(prompt_of(s))]
        ends = [chunk(s, prompt_of(s)[pieces[s] :], pieces[s], "prefill") for s in rest]
        firsts = dict(zip(rest, step(runner, ends), strict=True))
        for slot in rest:
            assert firsts[slot] == answers[slot][:1]
        next_ones = [chunk(s, [answers[s][0].token_id], len(prompt_of(s)), "decode") for s in some]
        assert step(runner, next_ones) == [answers[s][1:2] for s in some]


def test_a_check_of_drafts_has_the_bits_of_single_tokens(runner: ModelRunner) -> None:
    slots = list(range(10))
    answers = {slot: alone(runner, slot, 6) for slot in slots}
    for count in (1, 3, 10):
        checks = []
        for slot in slots[:count]:
            ids = [told.token_id for told in answers[slot]]
            checks.append(chunk(slot, ids[:4], len(prompt_of(slot)), "verify"))
        assert step(runner, checks) == [answers[slot][1:5] for slot in slots[:count]]
        wrong = checks[0]._replace(token_ids=[*checks[0].token_ids[:2], 998, 997])
        assert step(runner, [wrong]) == [answers[0][1:3]]
        again = chunk(0, [answers[0][2].token_id], len(prompt_of(0)) + 2, "decode")
        assert step(runner, [again]) == [answers[0][3:4]]  # what was wrong is written over
