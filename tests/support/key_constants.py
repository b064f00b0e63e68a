"""A file whose keys have large constants, as those of Qwen2.5 have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.format import ZSEReader
from zse.models.families import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec

CONSTANT = 150.0


def with_constants(path: Path, changed: Path, layers: tuple[int, ...]) -> ModelSpec:
    """Write a copy of a file whose keys of some layers have a large constant in one pair."""
    content = bytearray(path.read_bytes())
    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
        for layer in layers:
            attention = spec.layers[layer].mixer
            part = reader.entry(f"layers.{layer}.qkv.bias").part("data")
            bias = torch.zeros(attention.query_columns + 2 * attention.kv_columns)
            half = attention.head_dim // 2
            for column in (half - 1, 2 * half - 1):
                bias[attention.query_columns + column] = CONSTANT
            dtype = torch.float32 if part.dtype.size_bytes == 4 else torch.bfloat16
            raw = bias.to(dtype).view(torch.uint8).numpy().tobytes()
            content[part.offset_bytes : part.offset_bytes + len(raw)] = raw
    changed.write_bytes(content)
    return spec
