"""The CUDA backend on a GPU: the answers of the CPU backend, for every family and scheme."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from given_masks import GivenMasks
from logits import as_tensor
from penalized_steps import decode_with_penalties

from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
GRANITE = {
    "attention_multiplier": 0.1,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 8.0,
}
LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
}
CASES = [
    ("llama", "int4", {}),
    ("llama", "nf4", {}),
    ("llama", "int8", {}),
    ("llama", "bf16", {}),
    ("llama", "fp16", {}),
    ("llama", "int4", {"tie_word_embeddings": True}),
    ("llama", "int4", {"head_dim": 128, "num_key_value_heads": 1}),
    ("qwen2", "int4", {}),
    ("qwen3", "int8", {}),
    ("mistral", "int4", {"sliding_window": 40}),
    ("llama", "int4", {"attention_bias": True, "mlp_bias": True}),
    ("granite", "int4", GRANITE),
    ("granite", "bf16", GRANITE),
    ("starcoder2", "int4", {}),
    ("starcoder2", "int8", {"sliding_window": 40}),
    ("gemma2", "int4", {"head_dim": 128, "sliding_window": 40}),
    ("gemma3", "int4", {"num_hidden_layers": 2, "sliding_window": 40}),
    ("olmo2", "int4", {}),
    ("phi3", "int4", {}),
    ("smollm3", "int4", {"num_hidden_layers": 2}),
    ("llama", "int3", {}),
    ("llama", "int2", {}),
    ("llama", "nl4", {}),
    ("llama", "mxfp4", {}),
    # Queries and sums of latents are rounded to 16 bits on top of what other models round.
    ("deepseek_v2", "int8", LATENTS),
    ("deepseek_v3", "int4", {**LATENTS, "q_lora_rank": 128}),
]
TOLERANCE = {
    "int4": 4e-2,
    "nf4": 4e-2,
    "int3": 4e-2,
    "int2": 4e-2,
    "nl4": 4e-2,
    "mxfp4": 4e-2,
    "int8": 4e-2,
    "bf16": 2e-2,
    "fp16": 2e-2,
}


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 1000, (length,), generator=generator).tolist()


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def case(request: pytest.FixtureRequest, make_pair: Callable[..., Any]) -> tuple[Path, str]:
    family, quantization, changes = request.param
    return make_pair(family, quantization, **{**SHAPE, **changes}).path, quantization


@pytest.fixture
def runners(case: tuple[Path, str]) -> Iterator[tuple[ModelRunner, ModelRunner]]:
    gpu = load_runner(
        case[0],
        load_options(
            device="cuda",
            num_blocks=64,
            max_sequences=16,
            prefill_precision="16",  # 8 bits are held against these in test_prefill_on_gpu.py
            kernels=load_settings().serve.load.device.kernels,
        ),
        cache_dir=load_settings().cache_dir,
    )
    cpu = load_runner(case[0], load_options(device="torch", num_blocks=64))
    yield gpu, cpu
    gpu.close()
    cpu.close()


def chunk(tokens: list[int], start: int, slot: int, **options: Any) -> SequenceChunk:
    return SequenceChunk(
        sequence_slot=slot,
        token_ids=tokens,
        start_position=start,
        block_table=range(slot * 16, slot * 16 + 16),
        **{"kind": kind_of(len(tokens)), **options},
    )


def greedy(step: int = 0) -> SamplingRow:
    return SamplingRow(temperature=0.0, step=step, logprobs=5)


@pytest.mark.parametrize("length", [1, 2, 33, 400])
def test_logits_of_a_prompt_are_those_of_the_cpu(runners, case, length):
    gpu, cpu = runners
    expected = as_tensor(cpu.logits(prompt(length)))
    assert error_of(as_tensor(gpu.logits(prompt(length))), expected) < TOLERANCE[case[1]]


def test_decode_steps_follow_each_other_on_the_device(runners, case):
    gpu, cpu = runners
    lengths = (5, 40, 70)
    prompts = [prompt(length, seed=length) for length in lengths]
    first = gpu.submit(
        StepBatch(
            chunks=[chunk(tokens, 0, slot) for slot, tokens in enumerate(prompts)],
            sampling=[[greedy()]] * 3,
        )
    )
    pending = [first]
    for step in range(1, 4):
        batch = StepBatch(
            chunks=[
                chunk([PENDING_TOKEN], length + step - 1, slot)
                for slot, length in enumerate(lengths)
            ],
            sampling=[[greedy(step)]] * 3,
        )
        pending.append(gpu.submit(batch))
        if len(pending) == 2:
            collect(pending.pop(0), prompts)
    while pending:
        collect(pending.pop(0), prompts)
    for tokens, length in zip(prompts, lengths, strict=True):
        logits = as_tensor(cpu.logits(tokens))
        for place in range(length - 1, len(tokens) - 1):
            row = logits[place]
            gap = float(row.max() - row[tokens[place + 1]])
            assert gap <= TOLERANCE[case[1]] * float(row.abs().max()) * 2


def collect(step: Any, prompts: list[list[int]]) -> None:
    for tokens, (sampled,) in zip(prompts, step.wait(), strict=True):
        tokens.append(sampled.token_id)
        assert sampled.token_id == sampled.top[0][0]
        assert sampled.logprob == pytest.approx(sampled.top[0][1], abs=1e-4)


@pytest.mark.parametrize("length", [7, 300])
def test_penalties_do_not_depend_on_who_counts_the_newest_token(runners, length):
    gpu, _ = runners
    blocks = range(16)
    # A backend's first step of one row is launched as it is, and rounds otherwise than a graph of it.
    decode_with_penalties(gpu, prompt(length), blocks, num_tokens=2, ahead=False)
    answers = [
        decode_with_penalties(gpu, prompt(length), blocks, num_tokens=40, ahead=ahead)
        for ahead in (True, False)
    ]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5  # penalties keep it from saying one thing for ever


def test_a_step_mixes_decode_rows_with_a_prompt(runners, case):
    gpu, cpu = runners
    running, arriving = prompt(20, seed=1), prompt(300, seed=2)
    gpu.submit(StepBatch(chunks=[chunk(running[:-1], 0, 0)], sampling=[()])).wait()
    gpu.submit(StepBatch(chunks=[chunk(arriving[:100], 0, 1)], sampling=[()])).wait()
    mixed = StepBatch(
        chunks=[chunk(running[-1:], 19, 0), chunk(arriving[100:], 100, 1)],
        sampling=[[greedy()], [greedy()]],
    )
    answers = gpu.submit(mixed).wait()
    for tokens, (answer,) in zip((running, arriving), answers, strict=True):
        row = as_tensor(cpu.logits(tokens))[-1]
        logprobs = torch.log_softmax(row, 0)
        assert float(row.max() - row[answer.token_id]) <= TOLERANCE[case[1]] * 2 * float(
            row.abs().max()
        )
        assert answer.logprob == pytest.approx(float(logprobs[answer.token_id]), abs=0.1)


@pytest.mark.parametrize("wrong_at", [None, 0, 3])
def test_drafts_are_checked_in_one_step(runners, case, wrong_at):
    gpu, cpu = runners
    tokens = prompt(50, seed=3)
    gpu.execute(StepBatch(chunks=[chunk(tokens, 0, 0)], sampling=[()]))
    for _ in range(6):
        tokens.append(int(as_tensor(cpu.logits(tokens))[-1].argmax()))
    drafts = [999 if place == wrong_at else token for place, token in enumerate(tokens[51:55])]
    verify = chunk([tokens[50], *drafts], 50, 0, kind="verify")
    rows = [greedy(step) for step in range(5)]
    other = chunk(prompt(7, seed=4), 0, 1)
    found, (alone,) = gpu.execute(StepBatch(chunks=[verify, other], sampling=[rows, [greedy()]]))
    assert alone.token_id == alone.top[0][0]
    right = [draft == token.token_id for draft, token in zip(drafts, found, strict=False)]
    assert all(right[: len(found) - 1])
    assert len(found) == 5 or not right[len(found) - 1]
    logits = as_tensor(cpu.logits([*tokens[:51], *drafts]))
    for row, token in zip(logits[50:], found, strict=False):
        gap = float(row.max() - row[token.token_id])
        assert gap <= TOLERANCE[case[1]] * float(row.abs().max()) * 2


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_masks_hold_steps_that_follow_each_other_on_the_device(runners, case, temperature):
    """Two rows of four are held; each mask depends on the token before it."""
    gpu, cpu = runners
    lengths = (5, 40, 70, 9)
    prompts = [prompt(length, seed=length) for length in lengths]
    held = (0, 3)

    def allowed() -> list[set[int]]:
        return [
            {3 + (tokens[-1] * k) % 997 for k in range(1, 40)}
            for tokens in map(prompts.__getitem__, held)
        ]

    def rows(step: int) -> list[list[SamplingRow]]:
        row = SamplingRow(temperature=temperature, seed=7, step=step, top_p=0.9, logprobs=2)
        return [[replace(row, is_masked=slot in held)] for slot in range(4)]

    chunks = [chunk(tokens, 0, slot) for slot, tokens in enumerate(prompts)]
    current = gpu.submit(StepBatch(chunks=chunks, sampling=rows(0), masks=GivenMasks(allowed)))
    current.sample()
    for step in range(1, 6):
        pending = [
            chunk([PENDING_TOKEN], length + step - 1, slot) for slot, length in enumerate(lengths)
        ]
        later = gpu.submit(
            StepBatch(chunks=pending, sampling=rows(step), masks=GivenMasks(allowed))
        )
        may_come = allowed()
        for slot, (sampled,) in enumerate(current.wait()):
            prompts[slot].append(sampled.token_id)
            if slot in held:
                assert sampled.token_id in may_come[held.index(slot)]
        later.sample()
        current = later
    current.wait()
    if temperature:
        return
    for slot, length in enumerate(lengths):
        tokens = prompts[slot]
        logits = as_tensor(cpu.logits(tokens))
        for place in range(length - 1, len(tokens) - 1):
            row = logits[place]
            best = row.max()
            if slot in held:
                best = row[sorted({3 + (tokens[place] * k) % 997 for k in range(1, 40)})].max()
            gap = float(best - row[tokens[place + 1]])
            assert gap <= TOLERANCE[case[1]] * float(row.abs().max()) * 2
