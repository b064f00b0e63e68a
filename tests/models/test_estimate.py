"""Estimates are what the backends really reserve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zse.engine.requirements import facts_of
from zse.format import ZSEReader
from zse.models.families import read_checkpoint
from zse.models.memory import GPU_RUNTIME_BYTES, ModelFacts, estimate_memory
from zse.models.runner import load_runner
from zse.models.well_known import WELL_KNOWN
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

SEVEN_BILLION = ModelFacts(spec=read_checkpoint(WELL_KNOWN["qwen2.5-7b"]))


@pytest.mark.parametrize("quantization", ["fp32", "bf16", "int4"])
def test_a_cpu_keeps_the_weights_and_the_cache_that_were_estimated(
    quantization: str, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair("llama", quantization, tie_word_embeddings=True)
    with ZSEReader(pair.path) as reader:
        facts = facts_of(reader.header)
    estimate = estimate_memory(facts, "", on_gpu=False, context_tokens=256)
    runner = load_runner(pair.path, load_options(num_blocks=256 // 32, threads=1))
    held = runner.memory_bytes()
    runner.close()
    assert estimate.kv_bytes == held["kv_cache"]
    assert held["weights"] == pytest.approx(estimate.weights_bytes, rel=0.02)  # parts are aligned


def test_a_longer_context_takes_more_of_a_gpu_by_its_keys_and_values() -> None:
    short, long = (
        estimate_memory(SEVEN_BILLION, "int4", on_gpu=True, context_tokens=tokens)
        for tokens in (4096, 32768)
    )
    assert long.kv_bytes == 8 * short.kv_bytes == 32768 * 2 * 28 * 4 * 128 * 2
    assert (
        long.overhead_bytes - short.overhead_bytes < 160 << 20
    )  # a layer's keys and values, once more


def test_an_int8_cache_is_estimated_as_it_is_stored() -> None:
    wide, narrow = (
        estimate_memory(SEVEN_BILLION, "int4", on_gpu=True, kv_dtype=kv_dtype)
        for kv_dtype in ("bf16", "int8")
    )
    assert 0.5 < narrow.kv_bytes / wide.kv_bytes < 0.54


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_cache_of_four_bits_holds_three_and_a_half_times_the_context(on_gpu: bool) -> None:
    wide, narrow = (
        estimate_memory(SEVEN_BILLION, "int4", on_gpu=on_gpu, kv_dtype=kv_dtype)
        for kv_dtype in ("auto", "int4")
    )
    assert wide.kv_bytes >= 3.5 * narrow.kv_bytes


def test_seven_billion_weights_of_int4_take_what_was_measured_on_a_gpu() -> None:
    estimate = estimate_memory(SEVEN_BILLION, "int4", on_gpu=True)
    before_a_long_prompt = estimate.weights_bytes + estimate.kv_bytes + GPU_RUNTIME_BYTES
    wider_attention = 28 * 4608 * 3584 * (8 - 4.25) / 8  # it was INT4 when that was measured
    assert before_a_long_prompt == pytest.approx(5.2e9 + wider_attention, rel=0.03)
    assert estimate.total_bytes - before_a_long_prompt < 576 << 20
