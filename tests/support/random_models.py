"""Files of random float32 tensors for any spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.format import Scheme, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec


def write_file(path: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Write a float32 file of random tensors; return them."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        weight.name: torch.randn(weight.shape, generator=generator) for weight in spec.weights()
    }
    plan = [
        PlannedTensor(name=n, scheme=Scheme.FP32, shape=tuple(t.shape)) for n, t in tensors.items()
    ]
    with ZSEWriter(path, architecture="llama", model_config={}, provenance={}) as writer:
        writer.plan([("embed", plan)])
        for name, tensor in tensors.items():
            writer.write_part(name, "data", bytes_from(tensor))
        writer.close()
    return tensors
