"""Checks the contents of a mapped file: digests, padding and scales, with the standard library.

Scales are searched for infinities and NaNs by translating their exponent bytes, which runs at
memory speed without numpy.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from zse.format.errors import ChecksumMismatch, NonFiniteScale, NonZeroPadding
from zse.format.spec import DType, Region, TensorPart, ZSEHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 4 * 1024 * 1024
# Bytes that stay after deleting these belong to a float16 whose exponent is all ones.
_FINITE_F16_HIGH = bytes(byte for byte in range(256) if byte & 0x7C != 0x7C)
_F32_HIGH_ONES = bytes(byte & 0x7F == 0x7F for byte in range(256))
_F32_LOW_ONE = bytes(byte >> 7 for byte in range(256))


class Sliceable(Protocol):
    """The bytes of a file, in memory or elsewhere."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


def verify_contents(header: ZSEHeader, data: Sliceable, *, header_end_bytes: int) -> None:
    """Check a file whose header was validated.

    Args:
        header: The validated header.
        data: The whole file.
        header_end_bytes: Offset of the first byte after the header's JSON.

    Raises:
        ChecksumMismatch: A section or group differs from its digest.
        NonZeroPadding: A byte between the regions is not zero.
        NonFiniteScale: A scale is infinite or NaN.
    """
    for section in header.sections:
        _check_digest("section", section, data)
    for group in header.groups:
        _check_digest("group", group, data)
    _check_padding(header, data, header_end_bytes)
    for tensor in header.tensors:
        for part in tensor.parts:
            if part.role in _SCALE_ROLES:
                _check_finite(tensor.name, part, data)


def _chunks(data: Sliceable, start: int, end: int) -> Iterator[memoryview]:
    for offset in range(start, end, _CHUNK):
        yield data[offset : min(end, offset + _CHUNK)]


def _check_digest(kind: str, region: Region, data: Sliceable) -> None:
    digest = hashlib.sha256()
    for chunk in _chunks(data, region.offset_bytes, region.end_bytes):
        digest.update(chunk)
    if digest.hexdigest() != region.sha256:
        raise ChecksumMismatch(
            f"{kind} {region.name} has SHA-256 {digest.hexdigest()}, expected {region.sha256}"
        )


def _check_padding(header: ZSEHeader, data: Sliceable, header_end_bytes: int) -> None:
    regions: list[Region] = [*header.sections, *header.groups]
    position = header_end_bytes
    spans = [(region.offset_bytes, region.end_bytes) for region in regions if region.length_bytes]
    for start, end in (*sorted(spans), (len(data), len(data))):
        for chunk in _chunks(data, position, start):
            if bytes(chunk).count(0) != len(chunk):
                raise NonZeroPadding(f"the padding from byte {position} to {start} is not all zero")
        position = end


def _check_finite(name: str, part: TensorPart, data: Sliceable) -> None:
    has_non_finite = _NON_FINITE[part.dtype]
    for chunk in _chunks(data, part.offset_bytes, part.end_bytes):
        if has_non_finite(bytes(chunk)):
            raise NonFiniteScale(f"tensor {name}, part {part.role}, holds an infinite or NaN scale")


def _non_finite_f16(raw: bytes) -> bool:
    return bool(raw[1::2].translate(None, _FINITE_F16_HIGH))


def _non_finite_f32(raw: bytes) -> bool:
    high = raw[3::4].translate(_F32_HIGH_ONES)
    if 1 not in high:
        return False
    low = raw[2::4].translate(_F32_LOW_ONE)
    return bool(int.from_bytes(high, "little") & int.from_bytes(low, "little"))


_SCALE_ROLES = frozenset({"scale", "scale_zero", "absmax"})
# An I32 part holds two float16, each checked on its own.
_NON_FINITE: dict[DType, Callable[[bytes], bool]] = {
    DType.F32: _non_finite_f32,
    DType.F16: _non_finite_f16,
    DType.I32: _non_finite_f16,
}
