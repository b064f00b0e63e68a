r"""Reads kernel packs: compiled kernels of one GPU architecture in one file, ``.zkp``.

::

    0    8   magic: b"ZKP\0" + u32 little-endian version (1)
    8    8   u64 header length in bytes
    16  32   SHA-256 of the header bytes
    48  16   reserved, zero
    64   -   header: canonical JSON, then zeros to a multiple of 256
         -   cubins in the header's order, each 256-aligned, zeros between them

Offsets in the header count from the first byte after the header's zeros. Opening a pack checks the
header and where everything lies; a kernel's code is hashed when it is first asked for, so that the
few kernels that a server uses cost microseconds. ``verify`` checks every byte.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zse.errors import NotFoundError, UsageError
from zse.kernels.pack_errors import (
    BadPackField,
    BadPackHeader,
    BadPackMagic,
    DuplicatePackKey,
    KernelChecksumMismatch,
    KernelPackError,
    KernelPackMismatch,
    KernelVariantMissing,
    MisalignedKernel,
    NotACubin,
    OverlappingKernels,
    PackHeaderChecksumMismatch,
    PackHeaderTooLarge,
    PackPaddingSet,
    PackReservedBytesSet,
    PackTrailingBytes,
    TruncatedPack,
    UnknownPackTarget,
    UnsupportedPackVersion,
)
from zse.kernels.pack_fields import ELF_MAGIC, Row, read_details, read_row, read_skipped
from zse.kernels.targets import TARGETS, Target, runs_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from zse.kernels.targets import Capability
    from zse.kernels.variant import Constant, Variant

__all__ = ["KernelPack", "KernelPackError", "KernelPackMismatch", "PackEntry"]

MAGIC = b"ZKP\0"
VERSION = 1
PREFIX_BYTES = 64
ALIGN = 256
MAX_HEADER_BYTES = 8 * 1024 * 1024
HEADER_KEYS = frozenset({"entries", "provenance", "skipped", "target"})
PROVENANCE_KEYS = frozenset({"ptxas", "sources", "triton", "zse"})


def align_up(length_bytes: int) -> int:
    """Return the next multiple of 256."""
    return -(-length_bytes // ALIGN) * ALIGN


@dataclass(frozen=True, kw_only=True)
class PackEntry:
    """One compiled kernel, with all that a launch needs."""

    key: str
    """``Variant.key``."""
    entry: str
    """Name of the function in the cubin."""
    image: memoryview = field(repr=False)
    """The cubin, read-only."""
    arguments: tuple[tuple[str, str], ...]
    """(name, type) in order; types as in ``zse.kernels.variant.Argument``."""
    aligned: frozenset[str]
    """Arguments that must be multiples of 16."""
    trailing_pointers: int
    """64-bit parameters after the arguments: global scratch, then profile scratch."""
    constants: tuple[tuple[str, Constant], ...]
    """Compile-time constants, those of the target included."""
    num_warps: int
    """Warps of a block; a block has 32 times as many threads."""
    num_stages: int
    num_ctas: int
    """Blocks of a cluster; the grid's first dimension is multiplied by it."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    global_scratch_bytes: int
    """Device memory per block of the grid."""
    global_scratch_align: int
    profile_scratch_bytes: int
    programmatic: bool
    """Launch with the programmatic-stream-serialization attribute."""
    cooperative: bool
    registers: int
    """Registers of a thread."""
    stack_bytes: int
    """Local memory of a thread; more than 0 mostly means spilled registers."""
    sha256: str


class KernelPack:
    """The kernels of one architecture. Made by ``open``."""

    def __init__(
        self,
        view: memoryview,
        *,
        name: str,
        target: Target,
        provenance: Mapping[str, str],
        rows: Mapping[str, Row],
        skipped: Mapping[str, str],
        header: bytes,
    ) -> None:
        self.name = name
        self.target = target.name
        self.capability: Capability = target.capability
        self.provenance = provenance
        """``zse``, ``triton`` and ``ptxas`` versions; ``sources``: digest of the kernel sources."""
        self.skipped = skipped
        """Keys that this architecture cannot run, with the reason."""
        self.size_bytes = len(view)
        self._view = view
        self._rows = rows
        self._header = header
        self._code_offset = align_up(PREFIX_BYTES + len(header))
        self._entries: dict[str, PackEntry] = {}

    @classmethod
    def open(cls, source: str | os.PathLike[str] | bytes | memoryview) -> KernelPack:
        """Open a pack from a file or from memory; memory is not copied.

        Raises:
            NotFoundError: There is no such file.
            KernelPackError: A subclass that names the broken rule.
        """
        if isinstance(source, bytes | memoryview):
            return _parse(memoryview(source).cast("B").toreadonly(), "the pack")
        return _parse(_map_file(Path(source)), str(source))

    def keys(self) -> tuple[str, ...]:
        """Return the keys in the order in which the kernels lie."""
        return tuple(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def entry(self, key: str) -> PackEntry:
        """Return a kernel; its code is checked the first time.

        Raises:
            KernelVariantMissing: The pack holds no such kernel.
            BadPackField: A field of its description is wrong.
            KernelChecksumMismatch, NotACubin: Its code is damaged.
        """
        known = self._entries.get(key)
        if known is None:
            row = self._rows.get(key)
            if row is None:
                self._refuse_key(key)
            known = self._entries[key] = self._read(row)
        return known

    def missing(self, variants: Iterable[Variant]) -> tuple[str, ...]:
        """Return the keys of variants that the pack neither holds nor skipped on purpose."""
        return tuple(
            v.key for v in variants if v.key not in self._rows and v.key not in self.skipped
        )

    def require(self, capability: Capability, device_name: str = "this GPU") -> None:
        """Check that a device runs this pack's code.

        Raises:
            KernelPackMismatch: It does not.
        """
        if runs_on(self.capability, capability):
            return
        wanted = f"sm_{capability[0]}{capability[1]}"
        raise KernelPackMismatch(
            f"{self.name} holds kernels for {self.target}, but {device_name} needs {wanted}",
            hint=f"Build a pack: `zse kernels build --gpu {wanted} -o PACK`, or build the image "
            f"with `--gpu {wanted}`. Building needs `pip install 'zllm-zse[kernels]'`.",
        )

    def verify(self) -> None:
        """Check every byte: canonical header, each description, each kernel's code, padding.

        Raises:
            KernelPackError: A subclass that names the broken rule.
        """
        if canonical(json.loads(self._header)) != self._header:
            raise BadPackHeader(f"{self.name}: the header is not in its canonical spelling")
        end = PREFIX_BYTES + len(self._header)
        for row in self._rows.values():
            start = self._code_offset + row.offset_bytes
            self._check_zeros(end, start)
            self.entry(row.key)
            end = start + row.length_bytes
        self._check_zeros(end, self.size_bytes)

    def _check_zeros(self, start: int, end: int) -> None:
        if any(self._view[start:end]):
            raise PackPaddingSet(f"{self.name}: bytes {start} to {end - 1} are not all zero")

    def _read(self, row: Row) -> PackEntry:
        start = self._code_offset + row.offset_bytes
        image = self._view[start : start + row.length_bytes]
        found = hashlib.sha256(image).hexdigest()
        if found != row.sha256:
            raise KernelChecksumMismatch(
                f"{self.name}: {row.key} has SHA-256 {found}, the header claims {row.sha256}"
            )
        if image[:4] != ELF_MAGIC:
            raise NotACubin(f"{self.name}: {row.key} starts with {bytes(image[:4])!r}, not an ELF")
        details = read_details(row)
        return PackEntry(key=row.key, image=image, sha256=row.sha256, **details)

    def _refuse_key(self, key: str) -> NoReturn:
        reason = self.skipped.get(key)
        if reason:
            raise KernelVariantMissing(
                f"{self.name} leaves {key} out: {reason}",
                hint=f"{self.target} cannot run this variant; another one has to be chosen.",
            )
        raise KernelVariantMissing(
            f"{self.name} ({self.target}, zse {self.provenance['zse']}) holds no kernel {key}"
        )


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


def _map_file(path: Path) -> memoryview:
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


def _parse(view: memoryview, name: str) -> KernelPack:
    header = _read_header(view, name)
    try:
        document = json.loads(header.decode("ascii"))
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
    code_bytes = len(view) - align_up(PREFIX_BYTES + len(header))
    return KernelPack(
        view,
        name=name,
        target=TARGETS[target],
        provenance=_read_provenance(document["provenance"], name),
        rows=_check_places(rows, code_bytes, name),
        skipped=read_skipped(document["skipped"]),
        header=header,
    )


def _read_header(view: memoryview, name: str) -> bytes:
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
    if not all(isinstance(text, str) for text in value.values()):
        raise BadPackField(f"{name}: provenance holds something other than text")
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
