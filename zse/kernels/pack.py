r"""Reads kernel packs: compiled kernels of one GPU architecture in one file, ``.zkp``.

::

    0    8   magic: b"ZKP\0" + u32 little-endian version (1)
    8    8   u64 header length in bytes
    16  32   SHA-256 of the header bytes
    48  16   reserved, zero
    64   -   header: canonical JSON, then zeros to a multiple of 256
         -   kernels in the header's order, each: its facts as canonical JSON, zeros to a multiple
             of 256, its cubin, zeros to a multiple of 256

The header lists where each kernel lies, from the first byte after the header's zeros. Opening a
pack checks the header and these places; a kernel's facts and code are hashed and read when it is
first asked for, so that the few that a server uses cost microseconds. ``verify`` checks every byte.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from zse.kernels.pack_errors import (
    BadPackHeader,
    KernelChecksumMismatch,
    KernelPackError,
    KernelPackMismatch,
    KernelVariantMissing,
    NotACubin,
    PackPaddingSet,
)
from zse.kernels.pack_fields import ELF_MAGIC, read_facts
from zse.kernels.pack_header import PREFIX_BYTES, canonical, map_file, read_header
from zse.kernels.targets import runs_on
from zse.records import record

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from zse.kernels.pack_fields import Row
    from zse.kernels.pack_header import PackHeader
    from zse.kernels.variant import Constant, Variant

__all__ = ["KernelPack", "KernelPackError", "KernelPackMismatch", "PackEntry"]


@record
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
    """Of the facts above and the code, as they lie in the pack."""


class KernelPack:
    """The kernels of one architecture. Made by ``open``."""

    def __init__(
        self,
        view: memoryview,
        *,
        name: str,
        header: PackHeader,
    ) -> None:
        self.name = name
        self.target = header.target.name
        self.provenance = header.provenance
        """``zse``, ``triton`` and ``ptxas`` versions; ``sources``: digest of the kernel sources."""
        self.skipped = header.skipped
        """Keys that this architecture cannot run, with the reason."""
        self.size_bytes = len(view)
        self._view = view
        self._rows = header.rows
        self._header = header
        self._entries: dict[str, PackEntry] = {}

    @classmethod
    def open(cls, source: str | os.PathLike[str] | bytes | memoryview) -> KernelPack:
        """Open a pack from a file or from memory; memory is not copied.

        Raises:
            NotFoundError: There is no such file.
            KernelPackError: A subclass that names the broken rule.
        """
        if isinstance(source, bytes | memoryview):
            view, name = memoryview(source).cast("B").toreadonly(), "the pack"
        else:
            view, name = map_file(Path(source)), str(source)
        return cls(view, name=name, header=read_header(view, name))

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

    def require(self, target: str, device_name: str = "this GPU") -> None:
        """Check that a device of an architecture runs this pack's code.

        Raises:
            KernelPackMismatch: It does not.
        """
        if runs_on(self.target, target):
            return
        raise KernelPackMismatch(
            f"{self.name} holds kernels for {self.target}, but {device_name} needs {target}",
            hint=f"Build a pack: `zse kernels build --gpu {target} -o PACK`, or build the image "
            f"with `--gpu {target}`. Building needs the extra `kernels` of zse.",
        )

    def verify(self) -> None:
        """Check every byte: canonical header, each description, each kernel's code, padding.

        Raises:
            KernelPackError: A subclass that names the broken rule.
        """
        self._check_spelling("the header", self._header.raw)
        end = PREFIX_BYTES + len(self._header.raw)
        for row in self._rows.values():
            start = self._header.end_bytes + row.offset_bytes
            self.entry(row.key)
            self._check_zeros(end, start)
            end = start + row.facts_bytes
            self._check_spelling(row.key, bytes(self._view[start:end]))
            self._check_zeros(end, start + row.code_offset)
            end = start + row.length_bytes
        self._check_zeros(end, self.size_bytes)

    def _check_spelling(self, what: str, raw: bytes) -> None:
        if canonical(json.loads(raw)) != raw:
            raise BadPackHeader(f"{self.name}: {what} is not in its canonical spelling")

    def _check_zeros(self, start: int, end: int) -> None:
        if any(self._view[start:end]):
            raise PackPaddingSet(f"{self.name}: bytes {start} to {end - 1} are not all zero")

    def _read(self, row: Row) -> PackEntry:
        start = self._header.end_bytes + row.offset_bytes
        slot = self._view[start : start + row.length_bytes]
        found = hashlib.sha256(slot).hexdigest()
        if found != row.sha256:
            raise KernelChecksumMismatch(
                f"{self.name}: {row.key} has SHA-256 {found}, the header claims {row.sha256}"
            )
        image = slot[row.code_offset :]
        if image[:4] != ELF_MAGIC:
            raise NotACubin(f"{self.name}: {row.key} starts with {bytes(image[:4])!r}, not an ELF")
        facts = read_facts(row.key, bytes(slot[: row.facts_bytes]))
        return PackEntry(key=row.key, image=image, sha256=row.sha256, **facts)

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
