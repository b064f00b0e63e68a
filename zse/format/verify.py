"""Checks the contents of a mapped file: digests, padding and scales, with the standard library.

Scales are searched for infinities and NaNs by translating their exponent bytes, which runs at
memory speed without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.format.container import check_digest, check_zeros, chunks
from zse.format.errors import Rule
from zse.format.mxfp4 import MAX_EXPONENT
from zse.format.schemes import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.container import Sliceable
    from zse.format.spec import TensorPart, ZSEHeader

# Bytes that stay after deleting these belong to a float16 whose exponent is all ones.
_FINITE_F16_HIGH = bytes(byte for byte in range(256) if byte & 0x7C != 0x7C)
_FINITE_EXPONENTS = bytes(range(MAX_EXPONENT + 1))
_F32_HIGH_ONES = bytes(byte & 0x7F == 0x7F for byte in range(256))
_F32_LOW_ONE = bytes(byte >> 7 for byte in range(256))


def verify_contents(header: ZSEHeader, data: Sliceable, *, header_end_bytes: int) -> None:
    """Check a file whose header was validated.

    Args:
        header_end_bytes: Offset of the first byte after the header's JSON.

    Raises:
        FormatError: A section or group differs from its digest. A byte between the regions is not
            zero. A scale is infinite or NaN.
    """
    for region in header.regions:
        check_digest(region.where, data, region.offset_bytes, region.end_bytes, region.sha256)
    _check_padding(header, data, header_end_bytes)
    for tensor in header.tensors:
        for part in tensor.parts:
            if part.role in _SCALE_ROLES:
                _check_finite(tensor.name, part, data)


def _check_padding(header: ZSEHeader, data: Sliceable, header_end_bytes: int) -> None:
    position = header_end_bytes
    spans = [(each.offset_bytes, each.end_bytes) for each in header.regions if each.length_bytes]
    for start, end in (*sorted(spans), (len(data), len(data))):
        check_zeros(data, position, start)
        position = end


def _check_finite(name: str, part: TensorPart, data: Sliceable) -> None:
    has_non_finite = _NON_FINITE[part.dtype]
    for chunk in chunks(data, part.offset_bytes, part.end_bytes):
        if has_non_finite(bytes(chunk)):
            raise Rule.NON_FINITE_SCALE(
                f"tensor {name}, part {part.role}, holds an infinite or NaN scale"
            )


def _non_finite_f16(raw: bytes) -> bool:
    return bool(raw[1::2].translate(None, _FINITE_F16_HIGH))


def _non_finite_f32(raw: bytes) -> bool:
    high = raw[3::4].translate(_F32_HIGH_ONES)
    if 1 not in high:
        return False
    low = raw[2::4].translate(_F32_LOW_ONE)
    return bool(int.from_bytes(high, "little") & int.from_bytes(low, "little"))


def _non_finite_exponent(raw: bytes) -> bool:
    return bool(raw.translate(None, _FINITE_EXPONENTS))


_SCALE_ROLES = frozenset({"scale", "scale_zero", "absmax", "exponent"})
# An I32 part holds two float16, each checked on its own.
_NON_FINITE: dict[DType, Callable[[bytes], bool]] = {
    DType.F32: _non_finite_f32,
    DType.F16: _non_finite_f16,
    DType.I32: _non_finite_f16,
    DType.U8: _non_finite_exponent,
}
