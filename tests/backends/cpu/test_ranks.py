"""Ranks on CPUs: what they compute together is what one process computes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from family_shapes import ENCODERS
from joined_ranks import joined_runners
from logits import as_tensor
from model_pairs import make_pair

from zse.backends.types import SequenceChunk, StepBatch
from zse.errors import UsageError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.families import all_families
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["make_pair"]
POOL: dict[str, Any] = {"device": "cpu", "num_blocks": 16, "block_size": 8, "threads": 2}
EXACT: dict[str, Any] = {**POOL, "exact_activations": True, "kv_dtype": "fp32"}
TEXT = [(7 * index * index + 3) % 320 for index in range(45)]
UNDIVIDED = {
    "olmo2": "a norm over all heads of layer 0",
    "olmo3": "a norm over all heads of layer 0",
    "gemma4": "embeddings of its own for each layer",
}
FAMILIES = ("deepseek_v3", "gpt_oss", "qwen2", "qwen3_5_moe", "qwen3_next")
"""Biases and sinks, latents, states, gates, experts of all kinds; nightly all the others."""
OTHERS = sorted(set(all_families()) - ENCODERS - set(UNDIVIDED) - set(FAMILIES))


def logits_alone(path: Path, **options: Any) -> Any:
    runner = load_runner(path, load_options(**options))
    try:
        return as_tensor(runner.logits(TEXT))
    finally:
        runner.close()


def assert_close(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


def greedy(runner: ModelRunner, count: int = 12) -> list[int]:
    """Return the likeliest tokens behind a prompt; on ranks that choose none, those of rank 0."""
    tokens, position, chosen = TEXT[:20], 0, []
    for _ in range(count):
        kind = "prefill" if position == 0 else "decode"
        chunk = SequenceChunk(0, tokens, position, range(8), kind)
        batch = StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]])
        [answer] = runner.execute(batch)
        position += len(tokens)
        tokens = [FORCED[len(chosen)]] if not answer else [answer[0].token_id]
        chosen += tokens
    return chosen


FORCED: list[int] = []
"""What rank 0 chooses: the others go on with it."""


@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(one, marks=pytest.mark.nightly) for one in OTHERS)]
)
def test_logits_of_two_ranks_are_those_of_one_process(
    family: str, make_pair: Callable[..., Any]
) -> None:
    path = make_pair(family, "fp32").path
    expected = logits_alone(path, **EXACT)
    with joined_runners(path, 2, **EXACT) as joined:
        found, *_ = joined.each(lambda one: one.logits(TEXT))
        assert_close(as_tensor(found), expected)


def test_two_ranks_are_as_near_to_exact_numbers_as_one_process_is_where_both_round(
    make_pair: Callable[..., Any],
) -> None:
    """What ranks add up is not rounded: what parts them from one process is that both round."""
    path = make_pair("qwen2", "int8", hidden_size=256, intermediate_size=512).path
    usual = {**POOL, "kv_dtype": "fp32", "deterministic": True}
    exact, alone = (
        logits_alone(path, **{**usual, "exact_activations": no}) for no in (True, False)
    )
    error = float((alone - exact).norm() / exact.norm())
    with joined_runners(path, 2, **usual) as joined:
        found, *_ = joined.each(lambda one: one.logits(TEXT))
    with joined_runners(path, 2, **{**usual, "exact_activations": True}) as joined:
        exact_found, *_ = joined.each(lambda one: one.logits(TEXT))
    assert 1e-4 < error < 0.1
    assert float((as_tensor(found) - exact).norm() / exact.norm()) < 1.5 * error
    assert_close(as_tensor(exact_found), exact)


@pytest.mark.parametrize("ranks", [pytest.param(3, marks=pytest.mark.nightly), 4])
def test_ranks_that_share_a_kv_head_and_differ_in_width_compute_the_same(
    ranks: int, make_pair: Callable[..., Any]
) -> None:
    """Four query heads of one or two KV heads; an MLP of 13 groups."""
    shape = {
        "num_attention_heads": 12,
        "num_key_value_heads": 1 if ranks == 3 else 2,
        "intermediate_size": 208,
        "attention_bias": True,
        "tie_word_embeddings": ranks == 3,
    }
    path = make_pair("qwen3", "fp32", **shape).path
    expected = logits_alone(path, **EXACT)
    with joined_runners(path, ranks, **EXACT) as joined:
        widths = {one._computed.layers[0].mlp.down.weight.shape[1] for one in joined.runners}
        assert len(widths) > 1
        assert all(one.num_blocks == 16 for one in joined.runners)
        found, *_ = joined.each(lambda one: one.logits(TEXT))
        assert_close(as_tensor(found), expected)


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        ("qwen2", "int4"),
        ("qwen3_moe", "nf4"),
        pytest.param("qwen2", "int8", marks=pytest.mark.nightly),
        pytest.param("qwen3_moe", "bf16", marks=pytest.mark.nightly),
    ],
)
def test_tokens_of_quantized_ranks_are_those_of_one_process(
    family: str, scheme: str, make_pair: Callable[..., Any]
) -> None:
    """Where activations are not rounded, sums differ in their order alone."""
    shape = {
        "hidden_size": 256,
        "head_dim": 64,
        "intermediate_size": 256,
        "moe_intermediate_size": 256,
    }
    path = make_pair(family, scheme, **shape).path
    runner = load_runner(path, load_options(**EXACT))
    FORCED[:] = greedy(runner)
    expected = as_tensor(runner.logits(TEXT))
    runner.close()
    with joined_runners(path, 2, **EXACT) as joined:
        assert joined.each(greedy)[0] == FORCED
        found, *_ = joined.each(lambda one: one.logits(TEXT))
        assert_close(as_tensor(found), expected)
    with joined_runners(path, 2, **POOL) as joined:  # rounded to 8 bits, as by default
        found, *_ = joined.each(lambda one: one.logits(TEXT))
        assert_close(as_tensor(found), logits_alone(path, **POOL), 0.05)


def test_a_step_longer_than_fits_at_once_is_computed_in_pieces_by_all_ranks(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("llama", "fp32", max_position_embeddings=1024).path
    text = (TEXT * 16)[:600]
    options = {**EXACT, "num_blocks": 80}
    runner = load_runner(path, load_options(**options))
    expected = as_tensor(runner.logits(text, chunk_tokens=512))
    runner.close()
    with joined_runners(path, 2, **options) as joined:
        found, *_ = joined.each(lambda one: one.logits(text, chunk_tokens=512))
        assert_close(as_tensor(found), expected)


@pytest.mark.parametrize("family", list(UNDIVIDED))
def test_a_model_that_one_device_alone_computes_is_refused_by_name(
    family: str, make_pair: Callable[..., Any]
) -> None:
    with (
        pytest.raises(UsageError, match=UNDIVIDED[family]),
        joined_runners(make_pair(family, "fp32").path, 2, **EXACT),
    ):
        pass


@pytest.mark.parametrize(
    ("shape", "ranks", "words"),
    [
        ({}, 3, r"layer 0 has 4 heads, which cannot be divided among 3 ranks"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 2},
            3,
            r"layer 0 has 2 KV heads, which cannot be divided among 3 ranks",
        ),
        ({"vocab_size": 320, "num_attention_heads": 8}, 8, r"the head has 320 tokens in units"),
    ],
)
def test_sizes_that_cannot_be_divided_are_refused_by_name(
    shape: dict[str, Any], ranks: int, words: str, make_pair: Callable[..., Any]
) -> None:
    path = make_pair("qwen3", "fp32", **shape).path
    with pytest.raises(UsageError, match=words), joined_runners(path, ranks, **EXACT):
        pass
