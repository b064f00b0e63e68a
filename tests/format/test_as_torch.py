"""Torch views and dequantization, against plain Python arithmetic on the same bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import small_file
import torch

from zse.format import Scheme, ZSEReader
from zse.format.as_torch import bytes_from, scale_of_exponent, stored_parts
from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def reader(small_path: Path) -> ZSEReader:
    return ZSEReader(small_path)


def test_every_tensor_dequantizes_to_float32_of_its_logical_shape(reader: ZSEReader) -> None:
    assert {entry.scheme for entry in reader.header.tensors} == set(Scheme)
    for entry in reader.header.tensors:
        tensor = reader.tensor(entry.name)
        assert tensor.dtype == torch.float32
        assert tuple(tensor.shape) == entry.shape
        assert tensor.isfinite().all()


def test_views_share_the_mapping(reader: ZSEReader) -> None:
    one = stored_parts(reader, "embed.weight")["data"]
    two = stored_parts(reader, "embed.weight")["data"]
    assert one.data_ptr() == two.data_ptr()


def test_bytes_from_is_the_inverse_of_reading(reader: ZSEReader) -> None:
    for entry in reader.header.tensors:
        for role, tensor in stored_parts(reader, entry.name).items():
            assert bytes_from(tensor) == reader.part(entry.name, role)


def test_bytes_from_keeps_a_temporary_tensor_alive() -> None:
    view = bytes_from(torch.arange(1000, dtype=torch.int32).reshape(10, 100).t())
    expected = [column + 100 * row for column in range(100) for row in range(10)]
    assert list(struct.unpack("<1000i", view)) == expected


def test_int8_is_code_times_scale_of_its_row(reader: ZSEReader) -> None:
    planned = small_file.GROUPS[2][1][1]
    codes = struct.unpack("<1536b", small_file.part_bytes(planned, "qweight"))
    scales = struct.unpack("<12f", small_file.part_bytes(planned, "scale"))
    expected = [code * scales[index // 128] for index, code in enumerate(codes)]
    assert reader.tensor("lm_head.weight").flatten().tolist() == pytest.approx(expected)


def test_nf4_is_table_entry_times_absmax_of_its_block(reader: ZSEReader) -> None:
    planned = small_file.GROUPS[1][1][2]
    packed = small_file.part_bytes(planned, "qweight")
    absmax = struct.unpack("<10e", small_file.part_bytes(planned, "absmax"))
    expected = []
    for block in range(10):
        raw = packed[32 * block : 32 * block + 32]
        codes = [byte & 15 for byte in raw] + [byte >> 4 for byte in raw]
        expected += [NF4_CODES[code] * absmax[block] for code in codes]
    assert reader.tensor("layers.0.o.weight").flatten().tolist() == pytest.approx(expected)


def test_mxfp4_is_table_entry_times_a_power_of_two(reader: ZSEReader) -> None:
    planned = small_file.GROUPS[1][1][3]
    packed = small_file.part_bytes(planned, "qweight")
    expected = []
    for block, exponent in enumerate(small_file.part_bytes(planned, "exponent")):
        raw = packed[16 * block : 16 * block + 16]
        codes = [byte & 15 for byte in raw] + [byte >> 4 for byte in raw]
        expected += [MXFP4_CODES[code] * 2.0 ** (exponent - 127) for code in codes]
    assert reader.tensor("layers.0.up.weight").flatten().tolist() == expected


def test_nl4_is_a_level_times_its_own_groups_signed_scale(reader: ZSEReader) -> None:
    planned = small_file.GROUPS[1][1][4]
    packed = small_file.part_bytes(planned, "qweight")
    scales = [
        (-1) ** (byte >> 7) * (1 + (byte & 7) / 8) * 2.0 ** ((byte >> 3 & 15) - 17)
        for byte in small_file.part_bytes(planned, "signed_scale")
    ]
    expected = []
    for piece in range(6):  # of 32 columns: a group in the low nibbles, one in the high ones
        raw = packed[16 * piece : 16 * piece + 16]
        expected += [NL4_CODES[byte & 15] * scales[2 * piece] for byte in raw]
        expected += [NL4_CODES[byte >> 4] * scales[2 * piece + 1] for byte in raw]
    assert reader.tensor("layers.0.gate.weight").flatten().tolist() == expected


def test_the_least_exponent_is_a_number_that_is_not_normal() -> None:
    exponents = torch.tensor([0, 1, 127, 252], dtype=torch.uint8)
    assert scale_of_exponent(exponents).tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**125]


def test_plain_tensors_are_converted_exactly(reader: ZSEReader) -> None:
    raw = small_file.part_bytes(small_file.GROUPS[0][1][0], "data")
    words = struct.unpack(f"<{len(raw) // 2}H", raw)
    expected = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    assert reader.tensor("embed.weight").flatten().tolist() == expected


def test_nf4_codes_are_sixteen_rising_values_with_an_exact_zero() -> None:
    assert len(NF4_CODES) == 16
    assert list(NF4_CODES) == sorted(NF4_CODES)
    assert (NF4_CODES[0], NF4_CODES[7], NF4_CODES[15]) == (-1.0, 0.0, 1.0)
