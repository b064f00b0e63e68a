"""The CPU backend answers as torch does, within what 8-bit activations and a 16-bit cache leave."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from given_masks import GivenMasks
from logits import as_tensor
from penalized_steps import decode_with_penalties

from zse.backends.torch.sampling import sample
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
GRANITE = {"attention_multiplier": 0.1, "embedding_multiplier": 6.0, "logits_scaling": 8.0}
ODD = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 24,
    "vocab_size": 333,
}
CASES = [
    ("llama", "int8", ODD),
    ("llama", "int4", ODD),
    ("llama", "int4", {}),
    ("llama", "nf4", {"tie_word_embeddings": True}),
    ("llama", "int8", {"attention_bias": True, "mlp_bias": True}),
    ("llama", "bf16", {"head_dim": 128, "num_key_value_heads": 1}),
    ("qwen2", "int4", {}),
    ("qwen3", "fp16", {}),
    ("mistral", "int4", {"sliding_window": 40}),
    ("granite", "int8", GRANITE),
    ("starcoder2", "int4", {"sliding_window": 40}),
    ("llama", "int3", {}),
    ("qwen2", "int2", {}),
    ("llama", "nl4", {}),
    ("llama", "mxfp4", {}),
    ("gpt_oss", "mxfp4", {"sliding_window": 40}),
]
TOLERANCE = {
    "int4": 6e-2,
    "int3": 6e-2,
    "int2": 6e-2,
    "nf4": 6e-2,
    "nl4": 6e-2,
    "mxfp4": 6e-2,
    "int8": 6e-2,
    "bf16": 2e-3,
    "fp16": 2e-3,
}
"""Of prompts, too, every product of quantized weights reads activations of 8 bits."""
EXACT_TOLERANCE = 1e-5
EXACT: dict[str, Any] = {"exact_activations": True, "kv_dtype": "fp32"}


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 320, (length,), generator=generator).tolist()


@contextmanager
def opened(path: Any, **options: Any) -> Iterator[ModelRunner]:
    runner = load_runner(path, load_options(**{"num_blocks": 64, "threads": 1, **options}))
    yield runner
    runner.close()


def chunk(tokens: list[int], start: int = 0, slot: int = 0, **values: Any) -> SequenceChunk:
    blocks = range(slot * 12, slot * 12 + 12)
    return SequenceChunk(slot, tokens, start, blocks, **{"kind": kind_of(len(tokens)), **values})


@pytest.fixture
def path(make_pair: Callable[..., Any]) -> Any:
    return make_pair("llama", "bf16").path


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{len(case[2])}")
def test_logits_are_those_of_torch(case: Any, make_pair: Callable[..., Any]) -> None:
    family, quantization, changes = case
    path = make_pair(family, quantization, **{**SHAPE, **changes}).path
    ways = (({}, TOLERANCE[quantization]), (EXACT, EXACT_TOLERANCE))
    with opened(path, device="torch") as torchs:
        expected = {length: as_tensor(torchs.logits(prompt(length))) for length in (1, 2, 33, 300)}
    for way, tolerance in ways:
        with opened(path, device="cpu", **way) as ours:
            for length, logits in expected.items():
                found = as_tensor(ours.logits(prompt(length)))
                assert float((found - logits).norm() / logits.norm()) < tolerance


@pytest.mark.parametrize("quantization", ["int4", "int8", "bf16"])
def test_bits_do_not_depend_on_the_number_of_threads(
    quantization: str, make_pair: Callable[..., Any]
) -> None:
    path = make_pair("llama", quantization, **SHAPE).path
    found = []
    for threads in (1, 2, 3):
        with opened(path, threads=threads) as runner:
            found.append([as_tensor(runner.logits(prompt(n))) for n in (1, 40, 300)])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_prompt_of_more_rows_than_are_computed_at_once_is_cut(path: Any) -> None:
    tokens = prompt(250) + prompt(6, seed=1)
    with opened(path, **EXACT, max_context=256, block_size=32) as runner:
        known = [*tokens[1:], None]
        rows = [SamplingRow(temperature=0.0, logprobs=0, known_token_id=t) for t in known]
        first = chunk(tokens[:200], kind="prefill")
        others = [chunk(tokens, slot=1), chunk(tokens[:90], slot=2)]
        batch = StepBatch(chunks=[first, *others], sampling=[(), rows, rows[80:90]])
        _, whole, part = runner.execute(batch)
        logprobs = torch.log_softmax(as_tensor(runner.logits(tokens)), 1)
    assert [token.token_id for token in whole[:-1]] == tokens[1:]
    for index, token in enumerate(whole):
        assert token.logprob == pytest.approx(float(logprobs[index, token.token_id]), abs=1e-3)
    expected = [float(logprobs[index, tokens[index + 1]]) for index in range(80, 90)]
    assert [token.logprob for token in part] == pytest.approx(expected, abs=1e-3)


def test_more_wanted_rows_than_logits_have_room_are_computed_in_turns(path: Any) -> None:
    rows = [[SamplingRow(temperature=0.0, logprobs=1, wants_hidden=True)] for _ in range(5)]
    batch = StepBatch(chunks=[chunk(prompt(9, s), slot=s) for s in range(5)], sampling=rows)
    with opened(path) as runner:
        together = runner.execute(batch)
        runner._backend._registers.most_wanted = 2  # type: ignore[attr-defined]
        assert runner.execute(batch) == together


ROWS = [
    SamplingRow(temperature=0.0, logprobs=3),
    SamplingRow(temperature=0.0, logprobs=0, logit_bias={7: 100.0, 5000: 3.0}),
    SamplingRow(temperature=0.8, seed=3, step=4, logprobs=20),
    SamplingRow(temperature=1.5, seed=4, top_k=5),
    SamplingRow(temperature=1.5, seed=5, top_p=0.5, banned_token_ids={1, 2, 3}),
    SamplingRow(temperature=2.0, seed=6, min_p=0.2, logprobs=1),
    SamplingRow(temperature=2.0, seed=7, top_k=40, top_p=0.9, min_p=0.01),
    SamplingRow(temperature=0.0, prompt_token_ids=prompt(9), repetition_penalty=3.0),
    SamplingRow(temperature=0.7, seed=9, output_token_ids=[4, 4, 9], presence_penalty=1.0, step=3),
    SamplingRow(temperature=0.0, output_token_ids=[4, 4], frequency_penalty=2.0, step=2),
    SamplingRow(temperature=0.0, known_token_id=11, logprobs=2),
]


def test_tokens_are_chosen_as_torch_chooses_them_from_the_same_logits(path: Any) -> None:
    with opened(path) as runner:
        tokens = prompt(9)
        logits = as_tensor(runner.logits(tokens))[-1]
        for seed in range(20):
            rows = [replace(row, seed=row.seed + 100 * seed) for row in ROWS]
            for row in rows:
                batch = StepBatch(chunks=[chunk(tokens)], sampling=[[row]])
                ((found,),) = runner.execute(batch)
                expected = sample(logits, row)
                assert found.token_id == expected.token_id, row
                assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
                assert [token for token, _ in found.top] == [token for token, _ in expected.top]
                logprobs = [value for _, value in expected.top]
                assert [value for _, value in found.top] == pytest.approx(logprobs, abs=1e-4)


def test_masks_hold_their_own_rows_whatever_the_order_of_the_chunks(path: Any) -> None:
    """Rows of prompts stand behind those of decoded tokens; masks come in the batch's order."""
    allowed = [{5, 6}, {70, 300}, {31, 32, 33}]
    masks = GivenMasks(lambda: allowed)
    held = SamplingRow(temperature=1.0, seed=2, is_masked=True)
    with opened(path) as runner:
        runner.execute(StepBatch(chunks=[chunk(prompt(4), slot=2)], sampling=[()]))
        chunks = [
            chunk(prompt(8), slot=0),
            chunk(prompt(3), slot=1),
            chunk([9], start=4, slot=2),
            chunk(prompt(7), slot=3),
        ]
        sampling = [[held], [SamplingRow(temperature=0.0)], [held], [held]]
        answers = runner.execute(StepBatch(chunks=chunks, sampling=sampling, masks=masks))
    tokens = [token.token_id for (token,) in answers]
    assert masks.num_written == 1
    assert [tokens[0] in allowed[0], tokens[2] in allowed[1], tokens[3] in allowed[2]] == [True] * 3


def test_the_state_that_a_token_is_chosen_from_is_that_before_the_heads_scale(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("granite", "bf16", **GRANITE).path
    row = SamplingRow(temperature=0.0, wants_hidden=True)
    batch = StepBatch(chunks=[chunk(prompt(9))], sampling=[[row]])
    found = []
    for way in ({"device": "torch"}, {"device": "cpu", **EXACT}):
        with opened(path, **way) as runner:
            ((token,),) = runner.execute(batch)
            found.append(list(token.hidden))
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_penalties_count_each_token_of_a_long_answer_as_torch_does(path: Any) -> None:
    answers = []
    for way in ({"device": "torch"}, {"device": "cpu", **EXACT}):
        with opened(path, **way) as runner:
            answers.append(
                decode_with_penalties(runner, prompt(20), range(12), num_tokens=40, ahead=False)
            )
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5
