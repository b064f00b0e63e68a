"""The torch backend's operations equal the references."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from random_models import write_file

from zse.backends.torch import TorchBackend
from zse.backends.types import (
    SequenceChunk,
    StepBatch,
)
from zse.format import ZSEReader
from zse.kernels.attention.reference import attention
from zse.kernels.embed.reference import embed
from zse.kernels.gate_up.reference import activated_product
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kernels.norm.reference import residual_norm
from zse.kernels.rope_store.reference import rope_store, rotate
from zse.models.rope import RoPESpec
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TOLERANCE = 1e-5
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB = 64, 4, 2, 16, 96, 100
EPSILON = 1e-5
FREQUENCIES = tuple(10000.0 ** (-i / 8) for i in range(8))
NUMBERS: dict[str, Any] = {
    "family": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_layers": 1,
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": EPSILON,
    "rope_theta": 10000.0,
    "max_position": 64,
    "tie_word_embeddings": True,
}
PLAIN: dict[str, Any] = {"qkv_bias": True}
HEAD_NORMS: dict[str, Any] = {"qk_norm": True}
EVERYTHING: dict[str, Any] = {
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "activation": "gelu_tanh",
    "norm": "layer",
    "attention_scale": 0.2,
    "embedding_scale": 3.0,
    "residual_scale": 0.5,
    "logit_scale": 0.25,
}


@pytest.fixture(scope="module", params=[PLAIN, HEAD_NORMS, EVERYTHING], ids=len)
def case(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Any]:
    """Return a backend over a small file, its tensors, a step and a residual stream."""
    path: Path = tmp_path_factory.mktemp("kernels") / "case.zse"
    numbers = UniformDecoder(**NUMBERS, **request.param)
    ungated = TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")
    spec = numbers.spec(ungated if request.param is EVERYTHING else TensorNames())
    tensors = write_file(path, spec)
    options = load_options(block_size=4, num_blocks=8, threads=1)
    with ZSEReader(path) as reader:
        backend = TorchBackend(reader, spec, options)
        chunks = [
            SequenceChunk(0, [5, 9, 77], 0, [6], "prefill", wants_logits=True),
            SequenceChunk(1, [31], 0, [2], "decode"),
            SequenceChunk(2, [8] * 7, 0, [1, 4], "prefill"),
        ]
        rows = [SamplingRow(temperature=0.0)]
        step = backend.begin(StepBatch(chunks=chunks, sampling=[rows] * 3))
        residual = torch.randn(11, HIDDEN, generator=torch.Generator().manual_seed(4))
        layer = spec.layers[0]
        with backend.layer(layer) as weights:
            yield SimpleNamespace(
                backend=backend,
                tensors=tensors,
                step=step,
                residual=residual,
                spec=spec,
                layer=layer,
                weights=weights,
                numbers=numbers,
            )
        backend.close()


def normalized(case: Any, values: torch.Tensor, name: str) -> torch.Tensor:
    """Return the reference's norm of ``values``."""
    return residual_norm(
        values,
        case.tensors[f"{name}.weight"],
        EPSILON,
        is_layer_norm=case.numbers.norm == "layer",
        norm_bias=case.tensors.get(f"{name}.bias"),
    )[1]


def product(case: Any, values: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``values`` times a matrix, and its bias if it has one."""
    outputs = values @ case.tensors[f"{name}.weight"].T
    return outputs + case.tensors.get(f"{name}.bias", torch.zeros(1))


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max() / expected.abs().max()) <= TOLERANCE


def test_embed_equals_its_reference(case: Any) -> None:
    scale = case.spec.embedding.scale
    found = case.backend.embed(case.step, case.backend.ends.embedding, scale)
    assert torch.equal(found, embed(case.step.token_ids, case.tensors["embed.weight"]) * scale)


def test_norm_linear_equals_its_reference(case: Any) -> None:
    weights = case.weights
    found = case.backend.norm_linear(case.step, case.residual, weights.mixer_norm, weights.qkv)
    inputs = normalized(case, case.residual, "layers.0.attn_norm")
    check(found, product(case, inputs, "layers.0.qkv"))


@pytest.mark.parametrize("window", [None, 1, 3])
def test_rope_store_and_attention_equal_their_references(case: Any, window: int | None) -> None:
    step, tensors = case.step, case.tensors
    qkv = torch.randn(11, HEADS + 2 * KV_HEADS, HEAD_DIM)
    cache = torch.zeros(8 * 4, 2 * KV_HEADS, HEAD_DIM)
    (slots,) = step.slots  # of the one group of layers
    head_norms = None
    if case.numbers.qk_norm:
        names = ("layers.0.q_norm.weight", "layers.0.k_norm.weight")
        head_norms = (*(tensors[name] for name in names), EPSILON)
    expected = rope_store(
        qkv.clone(),
        step.positions,
        torch.tensor(FREQUENCIES),
        slots,
        cache,
        HEADS,
        head_norms,
    )
    spec = replace(case.layer.mixer, window=window)
    query = case.backend.rope_store(step, qkv.flatten(1), spec, case.weights, 0)
    check(query.rotated, expected)
    stored = step.cache.layers[0].numbers.view_as(cache)
    check(stored[slots], cache[slots])
    found = case.backend.attention(step, query, spec, case.weights, 0)
    expected = expected * spec.scale * HEAD_DIM**0.5  # the reference's own is 1 / sqrt(head_dim)
    for chunk in step.chunks:
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        part = attention(expected[rows], cache, slots[rows], chunk.start_position, window)
        check(found[rows], part)


def test_linear_residual_equals_its_reference(case: Any) -> None:
    inputs = torch.randn(11, WIDE)
    scale = case.layer.residual_scale
    found = case.backend.linear_residual(
        case.step, inputs, case.weights.down, case.residual.clone(), scale, None
    )
    added = product(case, inputs, "layers.0.down")
    check(found, case.residual + scale * added)
    found = case.backend.linear_residual(
        case.step, inputs, case.weights.down, case.residual.clone(), 1.0, case.weights.mlp_norm
    )
    check(found, case.residual + normalized(case, added, "layers.0.mlp_norm"))


def test_gate_up_equals_its_reference(case: Any) -> None:
    weights, mlp = case.weights, case.layer.mlp
    found = case.backend.gate_up(case.step, case.residual, weights.mlp_norm, weights.up, mlp)
    name = mlp.up.weight.name.removesuffix(".weight")
    joined = product(case, normalized(case, case.residual, "layers.0.mlp_norm"), name)
    check(found, activated_product(joined, mlp.activation, gated=mlp.is_gated))


def test_lm_head_sample_equals_its_reference(case: Any) -> None:
    step, head = case.step, case.spec.head

    def logits(rows: list[int]) -> torch.Tensor:
        inputs = normalized(case, case.residual[rows], "final_norm")
        return inputs @ case.tensors["embed.weight"].T * head.logit_scale

    check(case.backend.lm_head(step, case.residual, head), logits(step.wanted_rows))
    answers = case.backend.lm_head_sample(step, case.residual, head)
    expected = logits(step.sampled_rows).argmax(1).tolist()
    assert [token.token_id for (token,) in answers] == expected


def test_layers_that_turn_alike_share_a_table_and_others_have_their_own(tmp_path: Path) -> None:
    spec = UniformDecoder(**{**NUMBERS, "num_layers": 3}).spec(TensorNames())
    write_file(tmp_path / "case.zse", spec)
    first, second, third = spec.layers
    rope = RoPESpec(theta=100.0, rotary_dim=HEAD_DIM)
    second = replace(second, mixer=replace(second.mixer, rope=rope))
    spec = replace(spec, layers=(first, second, third))
    with ZSEReader(tmp_path / "case.zse") as reader:
        backend = TorchBackend(reader, spec, load_options(block_size=4, num_blocks=8, threads=1))
        chunk = SequenceChunk(0, [5, 9, 77], 2, [6, 1], "prefill")
        step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]))
        assert len(step.rotary) == 2
        qkv = torch.randn(3, HEADS + 2 * KV_HEADS, HEAD_DIM)
        for layer, theta in zip(spec.layers, (10000.0, 100.0, 10000.0), strict=True):
            mixer: Any = layer.mixer
            with backend.layer(layer) as weights:
                found = backend.rope_store(step, qkv.flatten(1), mixer, weights, layer.index)
            frequencies = torch.tensor([theta ** (-i / 8) for i in range(8)])
            check(found.rotated, rotate(qkv[:, :HEADS], step.positions, frequencies))
        backend.close()
