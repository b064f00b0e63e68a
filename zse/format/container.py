"""The container that .zse files and kernel packs share: a prefix, a header, aligned bytes.

::

    0    4   magic
    4    4   u32 little-endian version
    8    8   u64 header length in bytes
    16  32   SHA-256 of the header
    48  16   reserved, zero
    64   -   header: JSON (``header_json``), then what it lists, with zeros between

Whoever reads one checks the prefix before it believes the length, the digest before it parses, and
each place against the size of the whole before it slices.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Protocol

from zse.format.errors import Rule
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX_BYTES = 64
_CHUNK = 4 * 1024 * 1024


class Sliceable(Protocol):
    """The bytes of a file, in memory or elsewhere."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


@record
class Container:
    """What differs among the kinds of file that are such containers."""

    magic: bytes
    version: int
    max_header_bytes: int

    def seal(self, header: bytes) -> bytes:
        """Return the prefix for a header, and the header."""
        digest = hashlib.sha256(header).digest()
        return struct.pack("<4sIQ32s16x", self.magic, self.version, len(header), digest) + header

    def parse_prefix(self, prefix: bytes, size_bytes: int) -> tuple[int, bytes]:
        """Return the header's length in bytes and its SHA-256.

        Args:
            prefix: The first 64 bytes, or all there are.
            size_bytes: Size of the whole.
        """
        found = prefix[: len(self.magic)]
        if found != self.magic[: len(prefix)]:
            raise Rule.BAD_MAGIC(f"the file starts with {found!r}, expected {self.magic!r}")
        if len(prefix) < PREFIX_BYTES:
            raise Rule.TRUNCATED_HEADER(
                f"the file has {len(prefix)} bytes, the prefix alone {PREFIX_BYTES}"
            )
        version, length, digest, reserved = struct.unpack("<4xIQ32s16s", prefix)
        if version != self.version:
            raise Rule.UNSUPPORTED_VERSION(
                f"the file has version {version}, expected {self.version}"
            )
        if any(reserved):
            raise Rule.RESERVED_BYTES_SET(
                f"reserved bytes 48 to 63 are {reserved.hex()}, expected zeros"
            )
        if length > self.max_header_bytes:
            raise Rule.HEADER_TOO_LARGE(
                f"the header claims {length} bytes, the limit is {self.max_header_bytes}"
            )
        check_inside(Rule.TRUNCATED_HEADER, "the header", PREFIX_BYTES + length, size_bytes)
        return length, digest


def checked_header(raw: bytes, digest: bytes) -> bytes:
    """Return a header's bytes, or raise unless they have the SHA-256 that the prefix claims."""
    found = hashlib.sha256(raw).digest()
    if found != digest:
        raise Rule.HEADER_CHECKSUM_MISMATCH(
            f"the header has SHA-256 {found.hex()}, the prefix claims {digest.hex()}"
        )
    return raw


def check_unique(kind: str, names: Iterable[str]) -> None:
    """Raise unless each name, of things of one kind, stands once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Rule.DUPLICATE_NAME(f"the {kind} name {name[:80]!r} stands twice")
        seen.add(name)


def check_aligned(rule: Rule, where: str, offset_bytes: int, alignment: int) -> None:
    """Raise unless an offset is a multiple of the alignment."""
    if offset_bytes % alignment:
        raise rule(f"{where}: offset {offset_bytes} is not a multiple of {alignment}")


def check_inside(rule: Rule, where: str, end_bytes: int, size_bytes: int) -> None:
    """Raise unless what ends at ``end_bytes`` ends inside the file."""
    if end_bytes > size_bytes:
        raise rule(f"{where} ends at byte {end_bytes}, but the file has {size_bytes}")


def check_end(end_bytes: int, size_bytes: int) -> None:
    """Raise when the file goes on after everything that it lists."""
    if size_bytes > end_bytes:
        raise Rule.TRAILING_BYTES(
            f"the file has {size_bytes} bytes, but everything listed ends at {end_bytes}",
            hint="If adding to the file was interrupted, cut the rest off: "
            f"truncate -s {end_bytes} FILE. Otherwise copy or convert it again.",
        )


def chunks(data: Sliceable, start: int, end: int) -> Iterator[memoryview]:
    """Yield a range of bytes in pieces of 4 MiB."""
    for offset in range(start, end, _CHUNK):
        yield data[offset : min(end, offset + _CHUNK)]


def check_digest(where: str, data: Sliceable, start: int, end: int, expected: str) -> None:
    """Raise unless a range of bytes has the SHA-256 that the header claims."""
    digest = hashlib.sha256()
    for chunk in chunks(data, start, end):
        digest.update(chunk)
    check_sha256(where, digest.hexdigest(), expected)


def check_sha256(where: str, found: str, expected: str) -> None:
    if found != expected:
        raise Rule.CHECKSUM_MISMATCH(f"{where} has SHA-256 {found}, expected {expected}")


def check_zeros(data: Sliceable, start: int, end: int) -> None:
    """Raise unless a range of bytes, padding, is all zero."""
    for chunk in chunks(data, start, end):
        if bytes(chunk).count(0) != len(chunk):
            raise Rule.NON_ZERO_PADDING(f"the padding from byte {start} to {end} is not all zero")
