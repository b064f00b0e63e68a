"""Layers that keep 16-bit keys are found in the file itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.backends.gpu.outliers import kv_layers_kept_in_16_bits, outlier_layers
from zse.format import ZSEReader
from zse.models.families import read_header
from zse.settings import load_settings
from zse.stream.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def layers_of(path: Path) -> set[int]:
    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
        source = open_source(path, load_settings())
        try:
            return outlier_layers(source, reader.header, spec)
        finally:
            source.close()


def test_a_model_without_biases_has_none(make_pair: Callable) -> None:
    assert layers_of(make_pair("llama", "int8").path) == set()


def test_a_layer_with_a_huge_key_bias_is_found(make_pair: Callable, tmp_path: Path) -> None:
    pair = make_pair("qwen2", "int8", num_hidden_layers=4)
    assert layers_of(pair.path) == set()
    changed = tmp_path / "changed.zse"
    content = bytearray(pair.path.read_bytes())
    with ZSEReader(pair.path) as reader:
        spec = read_header(reader.header.model_config)
        heads = spec.attention
        part = reader.entry("layers.2.qkv.bias").part("data")
    first = part.offset_bytes + heads.num_heads * heads.head_dim * part.dtype.size_bytes
    huge = torch.full((heads.num_kv_heads * heads.head_dim,), 900.0)
    dtype = torch.float32 if part.dtype.size_bytes == 4 else torch.bfloat16
    raw = huge.to(dtype).view(torch.uint8).numpy().tobytes()
    content[first : first + len(raw)] = raw
    changed.write_bytes(content)
    assert layers_of(changed) == {2}


def test_layers_far_above_the_median_stay_in_16_bits() -> None:
    norms = dict(enumerate([605.0, *([22.0] * 26), 921.0], start=1))
    assert kv_layers_kept_in_16_bits(norms) == {1, 28}


def test_like_layers_may_all_be_quantized() -> None:
    assert kv_layers_kept_in_16_bits({0: 20.0, 1: 25.0, 2: 99.0}) == set()
    assert kv_layers_kept_in_16_bits({}) == set()
    assert kv_layers_kept_in_16_bits({0: 0.0, 3: 0.0}) == set()
