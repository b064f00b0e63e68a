"""Factors of keys are made of the file's biases, and lie one behind the other on the device."""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING

import torch
from interpreted_gpu import InterpretedGpu
from interpreted_runner import open_runner
from key_constants import CONSTANT, with_constants
from logits import as_tensor

from zse.backends.gpu.key_factors import DeviceFactors, read_key_factors
from zse.format import ZSEReader
from zse.models.families import read_header
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings
from zse.stream.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def factors_in(path: Path) -> dict[int, array[float]]:
    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
        source = open_source(path, load_settings())
        try:
            return read_key_factors(source, reader.header, spec)
        finally:
            source.close()


def test_a_model_without_biases_has_none(make_pair: Callable) -> None:
    assert factors_in(make_pair("llama", "int8").path) == {}


def test_a_layer_with_a_huge_key_bias_has_factors(make_pair: Callable, tmp_path: Path) -> None:
    pair = make_pair("qwen2", "int8", num_hidden_layers=4)
    assert factors_in(pair.path) == {}
    changed = tmp_path / "changed.zse"
    content = bytearray(pair.path.read_bytes())
    with ZSEReader(pair.path) as reader:
        spec = read_header(reader.header.model_config)
        heads = spec.attention
        part = reader.entry("layers.2.qkv.bias").part("data")
    first = part.offset_bytes + heads.num_heads * heads.head_dim * part.dtype.size_bytes
    huge = torch.full((heads.num_kv_heads * heads.head_dim,), 181.0)  # pairs are 256 long
    dtype = torch.float32 if part.dtype.size_bytes == 4 else torch.bfloat16
    raw = huge.to(dtype).view(torch.uint8).numpy().tobytes()
    content[first : first + len(raw)] = raw
    changed.write_bytes(content)
    found = factors_in(changed)
    assert set(found) == {2}
    assert set(found[2]) == {32.0}
    assert len(found[2]) == heads.num_kv_heads * heads.head_dim


def test_layers_that_share_keys_share_their_factors() -> None:
    one, other = array("f", [1.0, 2.0]), array("f", [4.0, 8.0])
    gpu = InterpretedGpu()
    device = DeviceFactors(gpu, {0: one, 3: other, 5: one})
    device.fill(gpu.create_stream())
    addresses = device.addresses
    assert addresses[5] == addresses[0] == addresses[3] - 8
    assert list((ctypes.c_float * 4).from_address(addresses[0])) == [1.0, 2.0, 4.0, 8.0]


def test_without_factors_nothing_is_kept() -> None:
    gpu = InterpretedGpu()
    device = DeviceFactors(gpu, {})
    device.fill(gpu.create_stream())
    assert device.addresses == {}


def test_an_int8_cache_loses_less_of_keys_with_constants(
    make_pair: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tokens = tmp_path / "constants.zse", [5, 17, 70]
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    with_constants(make_pair("qwen2", "int8", num_hidden_layers=1, **sizes).path, path, (0,))
    runner = open_runner(path, kv_dtype="int8")
    narrow = as_tensor(runner.logits(tokens, chunk_tokens=len(tokens) - 1))
    runner.close()

    def in_torch(kv_dtype: str) -> torch.Tensor:
        other = load_runner(path, load_options(device="torch", num_blocks=8, kv_dtype=kv_dtype))
        found = as_tensor(other.logits(tokens))
        other.close()
        return found

    expected = in_torch("fp32")
    monkeypatch.setattr("zse.backends.key_factors.USUAL_SIZE", 2 * CONSTANT)
    undivided = in_torch("int8")
    assert (narrow - expected).norm() < 0.5 * (undivided - expected).norm()


def test_a_cache_of_four_bits_is_that_of_torch(make_pair: Callable, tmp_path: Path) -> None:
    path, tokens = tmp_path / "constants.zse", [5, 17, 70, 3]
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    with_constants(make_pair("qwen2", "int8", **sizes).path, path, (1,))
    runner = open_runner(path, kv_dtype="int4")
    found = as_tensor(runner.logits(tokens, chunk_tokens=len(tokens) - 1))
    runner.close()
    options = load_options(device="torch", num_blocks=8, kv_dtype="int4")
    other = load_runner(path, options)
    expected = as_tensor(other.logits(tokens, chunk_tokens=len(tokens) - 1))
    other.close()
    assert float((found - expected).norm() / expected.norm()) < 0.05
