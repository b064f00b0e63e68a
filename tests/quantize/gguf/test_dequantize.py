"""Numbers of every type are those that the package ``gguf`` computes, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from zse.quantize.gguf.dequantize import dequantize
from zse.quantize.gguf.types import BLOCK_TYPES

WITHOUT_A_REFERENCE = ("Q8_1", "Q8_K")
"""No file has them: they are what llama.cpp makes of activations."""
PLAIN = {
    "F32": "<f4",
    "F16": "<f2",
    "F64": "<f8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
}
OTHERS = [
    number
    for number, kind in BLOCK_TYPES.items()
    if kind.name not in (*PLAIN, *WITHOUT_A_REFERENCE)
]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales that are no numbers
@pytest.mark.parametrize("number", OTHERS, ids=lambda number: BLOCK_TYPES[number].name)
def test_random_blocks_are_what_the_reference_says(number: int) -> None:
    kind = BLOCK_TYPES[number]
    blocks = np.random.default_rng(number).integers(0, 256, (40, kind.size_bytes), dtype=np.uint8)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType(number)).reshape(-1)
    found = dequantize(torch.from_numpy(blocks.copy()).reshape(-1), kind)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("name", PLAIN)
def test_numbers_as_they_are_stay(name: str) -> None:
    kind = next(kind for kind in BLOCK_TYPES.values() if kind.name == name)
    numbers = np.array([-3, 0, 1, 100], PLAIN[name])
    found = dequantize(torch.frombuffer(bytearray(numbers.tobytes()), dtype=torch.uint8), kind)
    assert found.tolist() == [-3.0, 0.0, 1.0, 100.0]


@pytest.mark.parametrize(("name", "head_bytes"), [("Q8_1", 4), ("Q8_K", 4)])
def test_bytes_of_activations_are_multiplied_by_their_scale(name: str, head_bytes: int) -> None:
    kind = next(kind for kind in BLOCK_TYPES.values() if kind.name == name)
    scale = np.array([0.5], "<f4" if name == "Q8_K" else "<f2").tobytes().ljust(head_bytes, b"\0")
    codes = np.arange(kind.numbers, dtype=np.uint8).astype(np.int8)
    block = (scale + codes.tobytes()).ljust(kind.size_bytes, b"\0")
    found = dequantize(torch.frombuffer(bytearray(block), dtype=torch.uint8), kind)
    assert found.tolist() == (codes * 0.5).tolist()


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_blocks_are_as_large_as_in_the_reference(number: int) -> None:
    kind = BLOCK_TYPES[number]
    if kind.name == "Q8_1":
        return  # its scales were float32 in the version that the package knows
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
    assert sizes == (kind.numbers, kind.size_bytes)
