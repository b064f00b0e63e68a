"""Mixtures of experts on the GPU backend, in the interpreter: the logits of torch, and launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from interpreted_runner import open_runner
from logits import as_tensor

from zse.backends.gpu import mixture_plans
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.format import ZSEReader
from zse.kernels.experts import plan
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.runner import ModelRunner

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
}
TOKENS = [5, 17, 70, 33, 9, 61]
TOLERANCE = 2.5e-2


def check_logits(path: Path, **options: object) -> None:
    """Compare a step of many rows, and one of a single token after it, with torch."""
    torch_runner = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(path, **options)
    found = as_tensor(runner.logits(TOKENS, chunk_tokens=len(TOKENS) - 1))
    runner.close()
    for rows in (slice(None, -1), slice(-1, None)):
        difference = (found[rows] - expected[rows]).norm() / expected[rows].norm()
        assert float(difference) < TOLERANCE


@pytest.mark.parametrize("scheme", ["int4", "int8", "bf16"])
def test_a_mixture_of_experts_has_the_logits_of_torch(make_pair: Callable, scheme: str) -> None:
    check_logits(make_pair("qwen3_moe", scheme, **SHAPE).path)


def test_without_int8_activations_each_row_goes_the_way_of_many(make_pair: Callable) -> None:
    check_logits(make_pair("qwen3_moe", "int4", **SHAPE).path, exact_activations=True)


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # of rows nobody reads
@pytest.mark.parametrize("shared_width", [64, 128])
def test_a_shared_expert_of_the_same_width_or_another(
    make_pair: Callable, shared_width: int
) -> None:
    shape = {**SHAPE, "shared_expert_intermediate_size": shared_width}
    check_logits(make_pair("qwen2_moe", "int8", **shape).path)


def test_a_dense_matrix_of_the_form_of_a_stack_has_room_for_its_sums(make_pair: Callable) -> None:
    states = {
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 64,
    }
    path = make_pair("qwen3_next", "int8", **{**SHAPE, **states}).path
    with ZSEReader(path) as reader:
        shapes = {entry.name: entry.shape for entry in reader.header.tensors}
    stack = shapes["layers.0.experts.gate_up.weight"]
    assert [*shapes.values()].count(stack) > 1
    runner = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = as_tensor(runner.logits(TOKENS[:2]))
    runner.close()
    runner = open_runner(path)
    found = as_tensor(runner.logits(TOKENS[:2]))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < 5e-2


def test_sigmoids_a_bias_for_the_choice_and_groups(make_pair: Callable) -> None:
    shape = {**SHAPE, "num_hidden_layers": 2, "intermediate_size": 128}
    check_logits(make_pair("glm4_moe", "int8", **shape).path)


def test_a_token_goes_through_eight_kernels_a_layer(make_pair: Callable) -> None:
    runner = open_runner(make_pair("qwen3_moe", "int8", **SHAPE).path)
    row = SamplingRow(temperature=0.0)
    launched = runner._backend._launcher.launched
    for tokens, start in ((TOKENS[:3], 0), (TOKENS[3:4], 3)):
        launched.clear()
        chunk = SequenceChunk(0, tokens, start, (2, 5), kind_of(len(tokens)))
        runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))
    names = [key.partition("[")[0] for key in launched]
    assert names[1:9] == [
        "norm.residual_norm",
        "linear.gemv_int8",
        "attention.decode",
        "linear.gemv_int8",
        "route.norm_route",
        "experts.pair_products",
        "gate_up.silu_mul",
        "experts.pair_products",
    ]
    assert names[9] == "norm.residual_norm"
    runner.close()


@pytest.mark.parametrize(
    ("family", "routed_rows", "unsorted_pairs"), [("qwen3_moe", 16, 128), ("gpt_oss", 4, 0)]
)
def test_rows_of_one_expert_are_multiplied_together_by_int8_activations(
    make_pair: Callable,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    routed_rows: int,
    unsorted_pairs: int,
) -> None:
    monkeypatch.setattr(plan, "DIRECT_ROWS", 16)
    monkeypatch.setattr(plan, "UNSORTED_PAIRS", unsorted_pairs)
    monkeypatch.setattr(mixture_plans, "ROUTED_ROWS", routed_rows)
    shape = {**SHAPE, "moe_intermediate_size": 128, "intermediate_size": 128}
    path = make_pair(family, "int4" if family == "qwen3_moe" else "mxfp4", **shape).path
    runner = open_runner(path, num_blocks=6, max_sequences=6)
    launched = runner._backend._launcher.launched
    launched.clear()
    found = told_of_rows(runner)
    names = [key.partition("[")[0] for key in launched]
    runner.close()
    product = "experts.direct_products"
    first = names.index(product)
    assert names[first + 2] == product
    before = ["norm.residual_norm", "route.group"] if unsorted_pairs == 0 else ["route.norm_route"]
    assert names[first - len(before) : first] == before
    runner = load_runner(path, load_options(device="torch", num_blocks=6, max_sequences=6))
    expected = told_of_rows(runner)
    runner.close()
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 0.1


def told_of_rows(runner: ModelRunner) -> list[float]:
    """Return how likely a token is behind each of six sequences of one token."""
    chunks = [SequenceChunk(row, [TOKENS[row]], 0, (row,), "decode") for row in range(6)]
    rows = [[SamplingRow(temperature=0.0, logprobs=0, known_token_id=3)] for _ in range(6)]
    answers = runner.execute(StepBatch(chunks=chunks, sampling=rows))
    return [each[0].logprob or 0.0 for each in answers]
