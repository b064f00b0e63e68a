"""The quantization schemes: which parts a tensor has in the file, and how many bytes they take."""

from __future__ import annotations

import math
from enum import StrEnum

from zse.format.errors import Rule

MAX_RANK = 8
MAX_ELEMENTS = 2**60
GROUP_SIZES = (128, 64, 32)


class Scheme(StrEnum):
    """How a tensor's numbers are stored."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"

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


def bytes_of_shape(dtype: DType, shape: tuple[int, ...]) -> int:
    """Return the bytes that a dense row-major array takes."""
    return math.prod(shape) * dtype.size_bytes


def parts_for(
    scheme: Scheme, shape: tuple[int, ...], group_size: int = 0
) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    """Return ``(role, dtype, shape)`` of each part of a tensor, in file order.

    Args:
        shape: Logical shape; quantized tensors are matrices [N, K].
        group_size: Elements along K that share a scale: 128, 64 or 32; 0 for other schemes.

    Raises:
        FormatError: The shape has no meaning for the scheme. The group size is not allowed or does
            not divide K.
    """
    if not 1 <= len(shape) <= MAX_RANK or any(size < 1 for size in shape):
        raise Rule.BAD_SHAPE(
            f"shape {list(shape)}: wanted 1 to {MAX_RANK} dimensions, each at least 1"
        )
    if math.prod(shape) > MAX_ELEMENTS:
        raise Rule.BAD_SHAPE(f"shape {list(shape)} holds more than 2**60 elements")
    grouped = scheme in (Scheme.INT4, Scheme.NF4)
    if not grouped and group_size != 0:
        raise Rule.BAD_GROUP_SIZE(f"scheme {scheme} has no groups, but group_size is {group_size}")
    if scheme in PLAIN:
        return (("data", PLAIN[scheme], shape),)
    if len(shape) != 2:
        raise Rule.BAD_SHAPE(f"scheme {scheme} stores matrices, but the shape is {list(shape)}")
    rows, columns = shape
    if not grouped:
        return (("qweight", DType.I8, (rows, columns)), ("scale", DType.F32, (rows,)))
    if group_size not in GROUP_SIZES or columns % group_size:
        raise Rule.BAD_GROUP_SIZE(
            f"group_size {group_size} for rows of {columns}: "
            f"wanted one of {list(GROUP_SIZES)} that divides the row"
        )
    packed = ("qweight", DType.U8, (rows, columns // 2))
    if scheme is Scheme.INT4:
        return (packed, ("scale_zero", DType.I32, (rows, columns // group_size)))
    return (packed, ("absmax", DType.F16, (rows, columns // group_size)))


def stored_bytes(scheme: Scheme, shape: tuple[int, ...], group_size: int = 0) -> int:
    """Return the bytes of a tensor's parts, without what aligns them.

    Raises:
        ValueError: As ``parts_for``.
    """
    return sum(
        bytes_of_shape(dtype, part) for _, dtype, part in parts_for(scheme, shape, group_size)
    )
