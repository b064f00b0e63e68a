from __future__ import annotations

import random
from array import array

import pytest

from zse.kernels.native.library import load
from zse.kernels.wire.reference import read_row, write_row
from zse.mesh.codecs import Codec
from zse.mesh.rows import read_rows, write_rows


def rows_of(seed, count, width, spread=3.0):
    rng = random.Random(seed)
    numbers = [rng.gauss(0, 1) * 10 ** rng.uniform(-spread, spread) for _ in range(count * width)]
    return memoryview(array("f", numbers))


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.word)
@pytest.mark.parametrize("width", [1, 31, 64, 65, 200])
def test_kernels_write_and_read_what_the_reference_does(codec, width):
    library = load()
    for seed in range(3):
        rows = rows_of(seed * 100 + width, 2, width)
        written = write_rows(library, codec, rows, width)
        expected = b"".join(write_row(codec, rows[start : start + width]) for start in (0, width))
        assert bytes(written) == expected
        found = memoryview(array("f", bytes(8 * width)))
        read_rows(library, codec, memoryview(written), found, width)
        half = len(expected) // 2
        again = read_row(codec, expected[:half], width) + read_row(codec, expected[half:], width)
        assert list(found) == again


@pytest.mark.parametrize(
    ("codec", "most"),
    [(Codec.BF16, 0.004), (Codec.FP8, 0.04), (Codec.INT8, 0.01), (Codec.INT4, 0.16)],
)
def test_what_a_codec_loses_is_bounded(codec, most):
    width, library = 512, load()
    rows = rows_of(5, 8, width, spread=0.0)
    found = memoryview(array("f", bytes(4 * len(rows))))
    read_rows(library, codec, memoryview(write_rows(library, codec, rows, width)), found, width)
    error = sum((a - b) ** 2 for a, b in zip(rows, found, strict=True)) ** 0.5
    assert error / sum(a * a for a in rows) ** 0.5 < most


def test_four_bits_survive_a_column_that_stands_out():
    """Massive activations: without the signs one number would leave no levels for the others."""
    width, library = 64, load()
    rows = rows_of(6, 1, width, spread=0.0)
    rows[7] = 40.0
    found = memoryview(array("f", bytes(4 * width)))
    read_rows(
        library, Codec.INT4, memoryview(write_rows(library, Codec.INT4, rows, width)), found, width
    )
    others = [(a, b) for place, (a, b) in enumerate(zip(rows, found, strict=True)) if place != 7]
    error = sum((a - b) ** 2 for a, b in others) ** 0.5
    assert error / sum(a * a for a, _ in others) ** 0.5 < 0.5


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.word)
def test_zeros_and_numbers_without_bounds_stay_within_memory(codec):
    width, library = 70, load()
    for value in (0.0, float("nan"), float("inf"), 3e38, 1e-45):
        rows = memoryview(array("f", [value] * width))
        written = write_rows(library, codec, rows, width)
        found = memoryview(array("f", bytes(4 * width)))
        read_rows(library, codec, memoryview(written), found, width)
        if value == 0.0:
            assert list(found) == [0.0] * width


def test_sizes_are_what_a_frame_announces():
    assert [codec.row_bytes(8192) for codec in Codec] == [32768, 16384, 8194, 8448, 4352]
