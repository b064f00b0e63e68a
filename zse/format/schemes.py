"""The quantization schemes: which parts a tensor has in the file, and how many bytes they take."""

from __future__ import annotations

import math
from enum import StrEnum

from zse.format.errors import Rule
from zse.format.few_bits import BITS, FEW_BITS_GROUP_SIZES
from zse.format.mxfp4 import MXFP4_GROUP
from zse.format.nl4 import NL4_GROUP_SIZES

MAX_RANK = 8
MAX_ELEMENTS = 2**60
GROUP_SIZES = (128, 64, 32)
PACKED_COLUMNS = 32
"""Fewest columns that schemes of four bits and fewer pack together; rows are multiples of it."""


class Scheme(StrEnum):
    """How a tensor's numbers are stored."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT3 = "int3"
    INT2 = "int2"
    NF4 = "nf4"
    NL4 = "nl4"
    MXFP4 = "mxfp4"

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is stored as it is, in one ``data`` part."""
        return self in PLAIN


class DType(StrEnum):
    """Element type of one part, little-endian."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    U8 = "u8"
    I8 = "i8"
    I32 = "i32"

    @property
    def size_bytes(self) -> int:
        return _DTYPE_BYTES[self]


_DTYPE_BYTES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.U8: 1, DType.I8: 1, DType.I32: 4}
PLAIN = {Scheme.FP32: DType.F32, Scheme.FP16: DType.F16, Scheme.BF16: DType.BF16}
_GROUPED = {
    Scheme.INT4: ("scale_zero", DType.I32),
    Scheme.INT3: ("scale_zero", DType.I32),
    Scheme.INT2: ("scale_zero", DType.I32),
    Scheme.NF4: ("absmax", DType.F16),
    Scheme.NL4: ("signed_scale", DType.U8),
    Scheme.MXFP4: ("exponent", DType.U8),
}
"""Schemes of four bits and fewer, and what a group has: role and dtype of the second part."""
_OTHER_GROUP_SIZES = {
    Scheme.INT3: FEW_BITS_GROUP_SIZES,
    Scheme.INT2: FEW_BITS_GROUP_SIZES,
    Scheme.NL4: NL4_GROUP_SIZES,
    Scheme.MXFP4: (MXFP4_GROUP,),
}


def bytes_of_shape(dtype: DType, shape: tuple[int, ...]) -> int:
    """Return the bytes that a dense row-major array takes."""
    return math.prod(shape) * dtype.size_bytes


def parts_for(
    scheme: Scheme, shape: tuple[int, ...], group_size: int = 0
) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    """Return ``(role, dtype, shape)`` of each part of a tensor, in file order.

    Args:
        shape: Logical shape; quantized tensors are matrices [N, K].
        group_size: Elements along K that share a scale, one of ``group_sizes``; 0 for schemes
            without groups.

    Raises:
        FormatError: The shape has no meaning for the scheme. The group size is not allowed or does
            not divide K, or K is no multiple of 32.
    """
    if not 1 <= len(shape) <= MAX_RANK or any(size < 1 for size in shape):
        raise Rule.BAD_SHAPE(
            f"shape {list(shape)}: wanted 1 to {MAX_RANK} dimensions, each at least 1"
        )
    if math.prod(shape) > MAX_ELEMENTS:
        raise Rule.BAD_SHAPE(f"shape {list(shape)} holds more than 2**60 elements")
    grouped = _GROUPED.get(scheme)
    if grouped is None and group_size != 0:
        raise Rule.BAD_GROUP_SIZE(f"scheme {scheme} has no groups, but group_size is {group_size}")
    if scheme in PLAIN:
        return (("data", PLAIN[scheme], shape),)
    if len(shape) != 2:
        raise Rule.BAD_SHAPE(f"scheme {scheme} stores matrices, but the shape is {list(shape)}")
    rows, columns = shape
    if grouped is None:
        return (("qweight", DType.I8, (rows, columns)), ("scale", DType.F32, (rows,)))
    sizes = group_sizes(scheme)
    if group_size not in sizes or columns % max(group_size, PACKED_COLUMNS):
        raise Rule.BAD_GROUP_SIZE(
            f"group_size {group_size} of {scheme} for rows of {columns}: "
            f"wanted one of {list(sizes)} that divides the row, "
            f"and a row of whole {PACKED_COLUMNS} columns"
        )
    role, dtype = grouped
    packed = ("qweight", DType.U8, (rows, columns * code_bits(scheme) // 8))
    return (packed, (role, dtype, (rows, columns // group_size)))


def code_bits(scheme: Scheme) -> int:
    """Return the bits that a code takes in a scheme whose codes are packed."""
    return BITS.get(scheme.value, 4)


def group_sizes(scheme: Scheme) -> tuple[int, ...]:
    """Return the sizes that groups of a scheme may have, the largest first; none without groups."""
    if scheme not in _GROUPED:
        return ()
    return _OTHER_GROUP_SIZES.get(scheme, GROUP_SIZES)


def kernel_format(scheme: Scheme, group_size: int) -> tuple[str, int]:
    """Return scheme and group size as kernels take them: groups of 16 by twos, as pairs of 32."""
    if scheme is Scheme.NL4 and group_size < PACKED_COLUMNS:
        return "nl4_pairs", PACKED_COLUMNS
    return scheme.value, group_size


def stored_bytes(scheme: Scheme, shape: tuple[int, ...], group_size: int = 0) -> int:
    """Return the bytes of a tensor's parts, without what aligns them.

    Raises:
        ValueError: As ``parts_for``.
    """
    return sum(
        bytes_of_shape(dtype, part) for _, dtype, part in parts_for(scheme, shape, group_size)
    )
