"""The CPU backend's operations equal the references."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from zse.backends.cpu import CPUBackend
from zse.backends.types import (
    SequenceChunk,
    StepBatch,
)
from zse.format import Scheme, ZSEReader, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.kernels.attention.reference import attention
from zse.kernels.embed.reference import embed
from zse.kernels.gate_up.reference import gate_up
from zse.kernels.lm_head_sample.reference import lm_head_sample
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kernels.norm.reference import rms_norm
from zse.kernels.rope_store.reference import rope_store
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOLERANCE = 1e-5
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB = 64, 4, 2, 16, 96, 100
EPSILON = 1e-5
FREQUENCIES = tuple(10000.0 ** (-i / 8) for i in range(8))
MATRICES = {
    "embed.weight": (VOCAB, HIDDEN),
    "qkv.weight": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "gate_up.weight": (2 * WIDE, HIDDEN),
    "down.weight": (HIDDEN, WIDE),
}
VECTORS = {"norm.weight": HIDDEN, "qkv.bias": MATRICES["qkv.weight"][0], "head_norm": HEAD_DIM}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a backend over a small float32 file, its tensors, a step and a residual stream."""
    generator = torch.Generator().manual_seed(3)
    shapes = {**MATRICES, **{name: (size,) for name, size in VECTORS.items()}}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    path: Path = tmp_path_factory.mktemp("kernels") / "case.zse"
    plan = [
        PlannedTensor(name=n, scheme=Scheme.FP32, shape=tuple(t.shape)) for n, t in tensors.items()
    ]
    with ZSEWriter(path, architecture="llama", model_config={}, provenance={}) as writer:
        writer.plan([("embed", plan)])
        for name, tensor in tensors.items():
            writer.write_part(name, "data", bytes_from(tensor))
        writer.close()
    numbers = UniformDecoder(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_layers=1,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=EPSILON,
        rope_theta=10000.0,
        max_position=64,
    )
    options = load_options(block_size=4, num_blocks=8, threads=1)
    with ZSEReader(path) as reader:
        backend = CPUBackend(reader, numbers.spec(TensorNames()), options)
        chunks = [
            SequenceChunk(0, [5, 9, 77], 0, [6], "prefill", wants_logits=True),
            SequenceChunk(1, [31], 0, [2], "decode"),
            SequenceChunk(2, [8] * 7, 0, [1, 4], "prefill"),
        ]
        rows = [SamplingRow(temperature=0.0)]
        step = backend.begin(StepBatch(chunks=chunks, sampling=[rows] * 3))
        residual = torch.randn(11, HIDDEN, generator=generator)
        yield SimpleNamespace(backend=backend, tensors=tensors, step=step, residual=residual)
        backend.close()


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max() / expected.abs().max()) <= TOLERANCE


def test_embed_equals_its_reference(case: Any) -> None:
    found = case.backend.embed(case.step, "embed.weight")
    assert torch.equal(found, embed(case.step.token_ids, case.tensors["embed.weight"]))


def test_norm_linear_equals_its_reference(case: Any) -> None:
    t = case.tensors
    found = case.backend.norm_linear(
        case.step, case.residual, "norm.weight", "qkv.weight", "qkv.bias"
    )
    expected = (
        rms_norm(case.residual, t["norm.weight"], EPSILON) @ t["qkv.weight"].T + t["qkv.bias"]
    )
    check(found, expected)


@pytest.mark.parametrize("head_norms", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_rope_store_and_attention_equal_their_references(
    case: Any, window: int | None, head_norms: bool
) -> None:
    step, norm = case.step, case.tensors["head_norm"]
    qkv = torch.randn(11, HEADS + 2 * KV_HEADS, HEAD_DIM)
    cache = torch.zeros(8 * 4, 2 * KV_HEADS, HEAD_DIM)
    expected = rope_store(
        qkv.clone(),
        step.positions,
        torch.tensor(FREQUENCIES),
        step.slots,
        cache,
        HEADS,
        (norm, norm, EPSILON) if head_norms else None,
    )
    names = ("head_norm", "head_norm") if head_norms else ()
    query = case.backend.rope_store(step, qkv.flatten(1), 0, *names)
    check(query, expected)
    stored = step.cache[0].view_as(cache)
    check(stored[step.slots], cache[step.slots])
    found = case.backend.attention(step, query, 0, window)
    for chunk in step.chunks:
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        part = attention(expected[rows], cache, step.slots[rows], chunk.start_position, window)
        check(found[rows], part)


def test_linear_residual_equals_its_reference(case: Any) -> None:
    inputs = torch.randn(11, WIDE)
    found = case.backend.linear_residual(case.step, inputs, "down.weight", case.residual.clone())
    expected = case.residual + inputs @ case.tensors["down.weight"].T
    check(found, expected)


def test_gate_up_equals_its_reference(case: Any) -> None:
    found = case.backend.gate_up(case.step, case.residual, "norm.weight", "gate_up.weight")
    t = case.tensors
    check(found, gate_up(case.residual, t["norm.weight"], t["gate_up.weight"], EPSILON))


def test_lm_head_sample_equals_its_reference(case: Any) -> None:
    t, step = case.tensors, case.step
    head = (t["norm.weight"], t["embed.weight"], EPSILON)
    args = (step, case.residual, "norm.weight", "lm_head.weight")
    check(case.backend.lm_head(*args), lm_head_sample(case.residual[step.wanted_rows], *head)[0])
    _, tokens = lm_head_sample(case.residual[step.sampled_rows], *head)
    assert [token.token_id for (token,) in case.backend.lm_head_sample(*args)] == tokens
