"""Reads the prefix and the header of a kernel pack, and checks where its kernels lie."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING, Any

from zse.errors import NotFoundError, UsageError
from zse.kernels.pack_errors import (
    BadPackField,
    BadPackHeader,
    BadPackMagic,
    DuplicatePackKey,
    MisalignedKernel,
    OverlappingKernels,
    PackHeaderChecksumMismatch,
    PackHeaderTooLarge,
    PackReservedBytesSet,
    PackTrailingBytes,
    TruncatedPack,
    UnknownPackTarget,
    UnsupportedPackVersion,
)
from zse.kernels.pack_fields import ALIGN, Row, align_up, is_plain_text, read_row, read_skipped
from zse.kernels.targets import TARGETS, Target
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"ZKP\0"
VERSION = 1
PREFIX_BYTES = 64
MAX_HEADER_BYTES = 8 * 1024 * 1024
HEADER_KEYS = frozenset({"entries", "provenance", "skipped", "target"})
PROVENANCE_KEYS = frozenset({"ptxas", "sources", "triton", "zse"})


@record
class PackHeader:
    """What the header says, checked."""

    target: Target
    provenance: Mapping[str, str]
    rows: Mapping[str, Row]
    skipped: Mapping[str, str]
    raw: bytes
    """The JSON as it lies in the pack."""

    @property
    def end_bytes(self) -> int:
        """Where the first kernel may lie: offsets count from here."""
        return align_up(PREFIX_BYTES + len(self.raw))


def canonical(document: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, in ASCII.

    Raises:
        BadPackHeader: A value has no JSON form.
    """
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadPackHeader(f"the header cannot be written as JSON: {error}") from None
    return text.encode("ascii")


def map_file(path: Path) -> memoryview:
    """Map a file read-only.

    Raises:
        NotFoundError: There is no such file, or it is a folder.
        UsageError: It cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no kernel pack {path}", hint="Build one with `zse kernels build`."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise NotFoundError(f"{path} is not a regular file", hint="Name a .zkp file.")
        if facts.st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(fd, facts.st_size, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)


def read_header(view: memoryview, name: str) -> PackHeader:
    """Check the prefix, the header and the places of kernels.

    Args:
        view: The whole pack.
        name: Its path, for messages.

    Raises:
        KernelPackError: A subclass that names the broken rule.
    """
    raw = _read_raw(view, name)
    try:
        document = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BadPackHeader(f"{name}: the header is not JSON: {error}") from None
    if not isinstance(document, dict) or document.keys() != HEADER_KEYS:
        raise BadPackHeader(f"{name}: the header is not an object with {sorted(HEADER_KEYS)}")
    target = document["target"]
    if not isinstance(target, str) or target not in TARGETS:
        raise UnknownPackTarget(f"{name} is for the architecture {target!r:.40}")
    if not isinstance(document["entries"], list):
        raise BadPackField(f"{name}: entries is not a list")
    rows = [read_row(entry) for entry in document["entries"]]
    return PackHeader(
        target=TARGETS[target],
        provenance=_read_provenance(document["provenance"], name),
        rows=_check_places(rows, len(view) - align_up(PREFIX_BYTES + len(raw)), name),
        skipped=read_skipped(document["skipped"]),
        raw=raw,
    )


def _read_raw(view: memoryview, name: str) -> bytes:
    found = bytes(view[: len(MAGIC)])
    if found != MAGIC[: len(view)] or not found:
        raise BadPackMagic(f"{name} starts with {found!r}, expected {MAGIC!r}")
    if len(view) < PREFIX_BYTES:
        raise TruncatedPack(f"{name} has {len(view)} bytes, the prefix alone {PREFIX_BYTES}")
    version, length, digest, reserved = struct.unpack("<4xIQ32s16s", view[:PREFIX_BYTES])
    if version != VERSION:
        raise UnsupportedPackVersion(f"{name} has version {version}, expected {VERSION}")
    if any(reserved):
        raise PackReservedBytesSet(f"{name}: bytes 48 to 63 are {reserved.hex()}, expected zeros")
    if length > MAX_HEADER_BYTES:
        raise PackHeaderTooLarge(
            f"{name}: the header claims {length} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    if align_up(PREFIX_BYTES + length) > len(view):
        raise TruncatedPack(
            f"{name}: the header ends at byte {PREFIX_BYTES + length}, the pack at {len(view)}"
        )
    header = bytes(view[PREFIX_BYTES : PREFIX_BYTES + length])
    real = hashlib.sha256(header).digest()
    if real != digest:
        raise PackHeaderChecksumMismatch(
            f"{name}: the header has SHA-256 {real.hex()}, the prefix claims {digest.hex()}"
        )
    return header


def _read_provenance(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or value.keys() != PROVENANCE_KEYS:
        raise BadPackField(f"{name}: provenance is not an object with {sorted(PROVENANCE_KEYS)}")
    if not all(is_plain_text(text) for text in value.values()):
        raise BadPackField(f"{name}: provenance holds something other than printable text")
    return value


def _check_places(rows: list[Row], code_bytes: int, name: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    end = 0
    for row in rows:
        if row.key in found:
            raise DuplicatePackKey(f"{name}: two kernels have the key {row.key}")
        if row.offset_bytes % ALIGN:
            raise MisalignedKernel(f"{name}: {row.key} starts at {row.offset_bytes}")
        if row.offset_bytes < end:
            raise OverlappingKernels(
                f"{name}: {row.key} starts at {row.offset_bytes}, before byte {end} where the "
                "kernel before it ends"
            )
        end = row.offset_bytes + row.length_bytes
        if end > code_bytes:
            raise TruncatedPack(f"{name}: {row.key} ends at byte {end} of {code_bytes}")
        found[row.key] = row
    if code_bytes != align_up(end):
        raise PackTrailingBytes(
            f"{name}: the kernels end at byte {align_up(end)}, the pack at {code_bytes}"
        )
    return found
