"""Files of random weights for a decoder of any numbers, also of such as no family has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from model_pairs import write_file

from zse.models.families import names_of
from zse.models.uniform import UniformDecoder

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.weights import WeightSpec

SCALES: dict[str, Any] = {
    "attention_scale": 0.05,
    "embedding_scale": 6.0,
    "residual_scale": 0.4,
    "logit_scale": 0.125,
}
BIASES: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
LAYER_NORMS: dict[str, Any] = {
    **BIASES,
    "family": "starcoder2",
    "activation": "gelu_tanh",
    "norm": "layer",
}


def write_random_file(
    path: Path,
    quantization: str,
    *,
    tuned: str | None = None,
    vectors: str = "bf16",
    **numbers: Any,
) -> None:
    """Write a ``.zse`` file; ``numbers`` are fields of ``UniformDecoder``.

    Weights whose names hold ``tuned`` are a little smaller than they would be. A converted file has
    ``vectors`` of float32.
    """
    decoder = UniformDecoder(
        **{
            "family": "llama",
            "num_layers": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            **numbers,
        }
    )
    spec = decoder.spec(names_of(decoder.family))
    generator = torch.Generator().manual_seed(11)
    weights = {
        piece.name: random_tensor(weight, piece.shape, generator)
        for weight in spec.weights()
        for piece in weight.pieces()
    }
    if tuned is not None:
        weights = {name: each * 0.8 if tuned in name else each for name, each in weights.items()}
    write_file(path, spec, weights, quantization, vectors=vectors)


def random_tensor(
    weight: WeightSpec, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Return norms around one, biases that matter, and matrices that keep the stream's size."""
    values = torch.randn(shape, generator=generator)
    if weight.kind == "norm":
        return 1.0 + 0.1 * values
    return values * (0.3 if weight.kind == "bias" else 0.08)
