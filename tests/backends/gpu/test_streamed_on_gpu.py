"""On a GPU: the answers of a model that streams are those of a whole one, bit for bit.

Of one that keeps no turned weights, that is, as one that streams keeps none: steps of more than 64
rows are rounded at other places where all are kept.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.core import EngineCore
from zse.engine.request import Request, SamplingParams
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.gpu

SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 9,
}
CASES = [
    ("llama", "int4", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", "int8", {}),
    ("gemma2", "int4", {"sliding_window": 40}),
    ("llama", "bf16", {"tie_word_embeddings": True}),
    ("qwen3_moe", "int4", {"moe_intermediate_size": 256}),
]


def open_runner(path: Path, **changes: Any) -> tuple[ModelRunner, Any]:
    given = {"num_blocks": 256, "max_sequences": 16}
    kernels = load_settings().serve.load.device.kernels
    options = load_options(device="cuda", kernels=kernels, **{**given, **changes})
    return load_runner(path, options, cache_dir=load_settings().cache_dir), options


def tokens_of(length: int, seed: int) -> list[int]:
    return [(7 * place + 31 * seed) % 997 + 1 for place in range(length)]


def chunk(tokens: list[int], start: int, slot: int) -> SequenceChunk:
    blocks = range(slot * 32, slot * 32 + 32)
    return SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)))


def greedy(step: int) -> SamplingRow:
    return SamplingRow(temperature=0.0, step=step, logprobs=5)


def answers(runner: ModelRunner) -> list[Any]:
    """Return what long and short prompts, single tokens, mixtures and drafts are answered."""
    found: list[Any] = []

    def execute(*chunks: SequenceChunk) -> list[Any]:
        rows = [
            [greedy(step) for step in range(len(one.token_ids) if one.kind == "verify" else 1)]
            for one in chunks
        ]
        found.append(runner.execute(StepBatch(chunks=list(chunks), sampling=rows)))
        return [answer[0].token_id for answer in found[-1]]

    lengths = {0: 3, 1: 300, 2: 40, 3: 700}
    last = dict(enumerate(execute(*(chunk(tokens_of(n, s), 0, s) for s, n in lengths.items()))))
    for step in range(6):
        decoded = [chunk([last[slot]], lengths[slot] + step, slot) for slot in lengths]
        if step == 3:
            joined = execute(*decoded, chunk(tokens_of(90, 9), 0, 5))
        else:
            joined = execute(*decoded)
        last = dict(zip(lengths, joined, strict=False))
    drafts = chunk([last[0], 17, 4], lengths[0] + 6, 0)._replace(kind="verify")
    execute(drafts)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_answers_are_those_of_a_whole_model(case: Any, make_pair: Callable[..., Any]) -> None:
    family, quantization, changes = case
    path = make_pair(family, quantization, **{**SHAPE, **changes}).path
    whole, _ = open_runner(path, prefill_weights="make")
    with closing(whole):
        expected = answers(whole)
    for resident, slots, ram in ((1, 2, 1e-6), (4, 3, 1.0), (6, 2, 1.0)):
        window = {"resident_layers": resident, "stream_slots": slots, "ram_gib": ram}
        runner, _ = open_runner(path, stream="on", **window)
        with closing(runner):
            assert runner.streaming is not None
            assert runner.streaming.streamed_layers >= 2
            assert answers(runner) == expected
            runner._backend._passes._weights.wait_pinned()  # type: ignore[attr-defined]
            assert answers(runner) == expected


def test_layers_that_are_given_up_between_steps_change_no_answer(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("llama", "int4", **SHAPE).path
    runner, _ = open_runner(path, stream="on", resident_layers=7)
    backend: Any = runner._backend
    weights = backend._passes._weights
    with closing(runner):
        expected = answers(runner)
        for _ in range(2):
            before = len(weights.plan.resident)
            assert weights.give_up(1)
            backend._moved(weights.placement, weights.blocks)
            assert len(weights.plan.resident) < before
            assert answers(runner) == expected


def test_requests_that_end_early_leave_the_others_their_answers(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("llama", "int4", **SHAPE).path

    def run(cancelled: tuple[str, ...], **changes: Any) -> dict[str, list[int]]:
        runner, options = open_runner(path, deterministic=True, **changes)
        found: dict[str, list[int]] = {}
        with closing(EngineCore(runner, options)) as core:
            for number, (length, count) in enumerate([(3, 20), (300, 12), (40, 15)]):
                params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
                prompt = tokens_of(length, number)
                core.add_request(
                    Request(request_id=str(number), prompt_token_ids=prompt, params=params)
                )
            for step in range(200):
                if step == 5:
                    for request_id in cancelled:
                        core.abort(request_id)
                if not core.has_work:
                    break
                for event in core.step():
                    if event.token_id is not None:
                        found.setdefault(event.request_id, []).append(event.token_id)
        return {key: tokens for key, tokens in found.items() if key not in cancelled}

    expected = run((), prefill_weights="make")
    assert run(("1",), stream="on", resident_layers=3) == {
        key: tokens for key, tokens in expected.items() if key != "1"
    }
