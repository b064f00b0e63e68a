"""Which parts a tensor has."""

from __future__ import annotations

import pytest
from broken_rules import breaks

from zse.format.errors import Rule
from zse.format.schemes import DType, Scheme, bytes_of_shape, kernel_format, parts_for


def test_int4_takes_half_a_byte_a_weight_and_four_bytes_a_group() -> None:
    assert parts_for(Scheme.INT4, (6, 256), 128) == (
        ("qweight", DType.U8, (6, 128)),
        ("scale_zero", DType.I32, (6, 2)),
    )


def test_nf4_takes_half_a_byte_a_weight_and_two_bytes_a_group() -> None:
    assert parts_for(Scheme.NF4, (6, 256), 64) == (
        ("qweight", DType.U8, (6, 128)),
        ("absmax", DType.F16, (6, 4)),
    )


def test_nl4_takes_half_a_byte_a_weight_and_a_byte_for_16_or_32() -> None:
    for size in (16, 32):
        assert parts_for(Scheme.NL4, (6, 96), size) == (
            ("qweight", DType.U8, (6, 48)),
            ("signed_scale", DType.U8, (6, 96 // size)),
        )


@pytest.mark.parametrize(("columns", "group_size"), [(48, 16), (96, 64), (80, 32), (96, 8)])
def test_rows_of_nl4_are_whole_32_columns_in_groups_of_16_or_32(
    columns: int, group_size: int
) -> None:
    with breaks(Rule.BAD_GROUP_SIZE):
        parts_for(Scheme.NL4, (6, columns), group_size)


def test_kernels_take_groups_of_16_by_twos() -> None:
    assert kernel_format(Scheme.NL4, 16) == ("nl4_pairs", 32)
    assert kernel_format(Scheme.NL4, 32) == ("nl4", 32)
    assert kernel_format(Scheme.INT4, 128) == ("int4", 128)


def test_mxfp4_takes_half_a_byte_a_weight_and_a_byte_for_32() -> None:
    assert parts_for(Scheme.MXFP4, (6, 96), 32) == (
        ("qweight", DType.U8, (6, 48)),
        ("exponent", DType.U8, (6, 3)),
    )


@pytest.mark.parametrize(("columns", "group_size"), [(128, 64), (128, 0), (80, 32)])
def test_groups_of_mxfp4_are_32_columns(columns: int, group_size: int) -> None:
    with breaks(Rule.BAD_GROUP_SIZE):
        parts_for(Scheme.MXFP4, (6, columns), group_size)


def test_int8_has_one_scale_a_row() -> None:
    assert parts_for(Scheme.INT8, (6, 10)) == (
        ("qweight", DType.I8, (6, 10)),
        ("scale", DType.F32, (6,)),
    )


@pytest.mark.parametrize("scheme", [Scheme.FP32, Scheme.FP16, Scheme.BF16])
def test_plain_schemes_have_one_part_of_the_logical_shape(scheme: Scheme) -> None:
    ((role, dtype, shape),) = parts_for(scheme, (2, 3, 4))
    assert (role, shape) == ("data", (2, 3, 4))
    assert bytes_of_shape(dtype, shape) == 24 * (4 if scheme is Scheme.FP32 else 2)


@pytest.mark.parametrize("shape", [(), (0,), (-1, 4), (1,) * 9, (2**40, 2**40)])
def test_shapes_without_meaning_are_refused(shape: tuple[int, ...]) -> None:
    with breaks(Rule.BAD_SHAPE):
        parts_for(Scheme.FP16, shape)


@pytest.mark.parametrize("group_size", [0, 16, 48, 256, -64])
def test_group_sizes_other_than_three_are_refused(group_size: int) -> None:
    with breaks(Rule.BAD_GROUP_SIZE):
        parts_for(Scheme.INT4, (4, 768), group_size)
