"""What specs can say and families do not yet: norms of what is added, two kinds of rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from logits import as_tensor
from random_models import write_file

from zse.backends.cpu.backend import CPUBackend
from zse.backends.cpu.supported import check_supported
from zse.backends.torch import TorchBackend
from zse.backends.types import SequenceChunk, StepBatch
from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.kernels.native.codes import Kind
from zse.models.decoder import forward_of, logits_of
from zse.models.rope import RoPESpec
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from zse.models.spec import ModelSpec

NUMBERS: dict[str, Any] = {
    "family": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position": 64,
}
OPTIONS = load_options(
    block_size=4, num_blocks=16, threads=1, exact_activations=True, kv_dtype="fp32"
)
PLAIN = UniformDecoder(**NUMBERS).spec(TensorNames())
LAYER_NORMS = UniformDecoder(
    **NUMBERS, norm="layer", qkv_bias=True, output_bias=True, mlp_bias=True, residual_scale=0.3
).spec(TensorNames())


def with_ropes(spec: ModelSpec, *thetas: float) -> ModelSpec:
    """Return a model whose layers turn heads differently."""
    ropes = [RoPESpec(theta=theta, rotary_dim=16) for theta in thetas]
    layers = [
        replace(layer, mixer=replace(layer.mixer, rope=rope))
        for layer, rope in zip(spec.layers, ropes, strict=True)
    ]
    return replace(spec, layers=tuple(layers))


def with_post_norms(spec: ModelSpec) -> ModelSpec:
    layers = [
        replace(layer, mixer_post_norm=layer.mlp_norm, mlp_post_norm=layer.mixer_norm)
        for layer in spec.layers
    ]
    return replace(spec, layers=tuple(layers))


def logits(backend: Any, spec: ModelSpec) -> torch.Tensor:
    chunks = [
        SequenceChunk(0, [5, 9, 77, 31, 8], 0, [6, 3], "prefill", wants_logits=True),
        SequenceChunk(1, [31], 0, [2], "decode", wants_logits=True),
    ]
    step = backend.begin(StepBatch(chunks=chunks, sampling=[()] * 2))
    found = as_tensor(backend.join_rows([logits_of(backend, spec, step)]))
    backend.close()
    return found


@pytest.mark.parametrize(
    ("stored", "spec"),
    [
        (PLAIN, with_post_norms(PLAIN)),
        (LAYER_NORMS, with_post_norms(LAYER_NORMS)),
        (PLAIN, with_ropes(PLAIN, 10000.0, 100.0, 10000.0)),
    ],
    ids=["post norms", "layer norms", "two rotations"],
)
def test_what_torch_computes_is_computed(
    stored: ModelSpec, spec: ModelSpec, tmp_path: Path
) -> None:
    write_file(tmp_path / "model.zse", stored)
    with ZSEReader(tmp_path / "model.zse") as reader:
        expected = logits(TorchBackend(reader, spec, OPTIONS), spec)
        found = logits(CPUBackend(reader, spec, OPTIONS), spec)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


def test_a_third_kind_of_rotation_is_refused_by_name(tmp_path: Path) -> None:
    write_file(tmp_path / "model.zse", PLAIN)
    with (
        ZSEReader(tmp_path / "model.zse") as reader,
        pytest.raises(UnsupportedModelError, match=r"the layers .*3 kinds of rotation"),
    ):
        CPUBackend(reader, with_ropes(PLAIN, 1.0, 2.0, 3.0), OPTIONS)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"head_dim": 578}, "heads of 578 columns, more than 576"),
        ({"num_heads": 258}, "129 heads that share keys, more than 128"),
        ({"vocab_size": 2**20 + 1}, "1048577 tokens, more than 1048576"),
    ],
)
def test_what_the_kernels_have_no_room_for_is_refused(
    numbers: dict[str, Any], message: str
) -> None:
    spec = UniformDecoder(**{**NUMBERS, **numbers}).spec(TensorNames())
    with pytest.raises(UnsupportedModelError, match=message):
        check_supported(spec)


def test_a_program_is_recorded_once_and_turns_each_kind_of_position_once(tmp_path: Path) -> None:
    write_file(tmp_path / "model.zse", PLAIN)
    spec = with_ropes(PLAIN, 10000.0, 100.0, 10000.0)
    with ZSEReader(tmp_path / "model.zse") as reader:
        backend = CPUBackend(reader, spec, OPTIONS)
        program = forward_of(spec)(backend, None)
        kinds = [Kind(one.kind) for one in program.operations]
        assert kinds.count(Kind.ROTARY) == 2
        assert kinds.count(Kind.ATTEND) == 3
        assert kinds[-3:] == [Kind.NORM, Kind.MULTIPLY, Kind.SAMPLE]
        calls: list[object] = []
        forward = lambda ops, step: calls.append(step) or program  # noqa: E731
        batch = StepBatch(chunks=[SequenceChunk(0, [5], 0, [6], "decode")], sampling=[()])
        for _ in range(3):
            backend.submit(batch, forward).wait()
        assert len(calls) == 1
        backend.close()
