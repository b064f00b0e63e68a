r"""Reads kernel packs: compiled kernels of one GPU architecture in one file, ``.zkp``.

A pack is a container (``zse.format.container``) with the magic ``ZKP\0``. Behind its header, and
zeros to a multiple of 256, lie the kernels in the header's order, each: its facts as canonical
JSON, zeros to a multiple of 256, its cubin, zeros to a multiple of 256.

The header lists where each kernel lies, from the first byte after the header's zeros. Opening a
pack checks the header and these places; a kernel's facts and code are hashed and read when it is
first asked for, so that the few that a server uses cost microseconds. ``verify`` checks every byte.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from zse.errors import NotFoundError
from zse.format.container import PREFIX_BYTES, check_digest, check_zeros
from zse.format.errors import Rule
from zse.format.header_json import dump_canonical
from zse.format.reader import open_file
from zse.kernels.errors import KernelRule, in_pack
from zse.kernels.pack_header import ELF_MAGIC, read_facts, read_header
from zse.kernels.targets import runs_on
from zse.records import record

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from zse.kernels.pack_header import PackHeader, Row
    from zse.kernels.variant import Constant, Variant


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

    def __init__(self, view: memoryview, *, name: str, header: PackHeader) -> None:
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
            KernelPackError: Its ``rule`` says what is broken.
        """
        if isinstance(source, bytes | memoryview):
            view, name = memoryview(source).cast("B").toreadonly(), "the pack"
        else:
            view, name = _map_file(Path(source)), str(source)
        with in_pack(name):
            return cls(view, name=name, header=read_header(view))

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in the order in which the kernels lie."""
        return iter(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def entry(self, key: str) -> PackEntry:
        """Return a kernel; its code is checked the first time.

        Raises:
            KernelPackError: The pack holds no such kernel, or it is damaged.
        """
        known = self._entries.get(key)
        if known is None:
            row = self._rows.get(key)
            if row is None:
                self._refuse_key(key)
            with in_pack(self.name):
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
            KernelPackError: It does not.
        """
        if runs_on(self.target, target):
            return
        raise KernelRule.PACK_MISMATCH(
            f"{self.name} holds kernels for {self.target}, but {device_name} needs {target}",
            hint=f"Build a pack: `zse kernels build --gpu {target} -o PACK`, or build the image "
            f"with `--gpu {target}`. Building needs the extra `kernels` of zse.",
        )

    def verify(self) -> None:
        """Check every byte: canonical header, each description, each kernel's code, padding.

        Raises:
            KernelPackError: Its ``rule`` says what is broken.
        """
        with in_pack(self.name):
            _check_spelling("the header", self._header.raw)
            end = PREFIX_BYTES + len(self._header.raw)
            for row in self._rows.values():
                start = self._header.end_bytes + row.offset_bytes
                self.entry(row.key)
                check_zeros(self._view, end, start)
                end = start + row.facts_bytes
                _check_spelling(row.key, bytes(self._view[start:end]))
                check_zeros(self._view, end, start + row.code_offset)
                end = start + row.length_bytes
            check_zeros(self._view, end, self.size_bytes)

    def _read(self, row: Row) -> PackEntry:
        start = self._header.end_bytes + row.offset_bytes
        check_digest(row.key, self._view, start, start + row.length_bytes, row.sha256)
        image = self._view[start + row.code_offset : start + row.length_bytes]
        if image[:4] != ELF_MAGIC:
            raise Rule.NOT_A_CUBIN(f"{row.key} starts with {bytes(image[:4])!r}, not an ELF")
        facts = read_facts(row.key, bytes(self._view[start : start + row.facts_bytes]))
        return PackEntry(key=row.key, image=image, sha256=row.sha256, **facts)

    def _refuse_key(self, key: str) -> NoReturn:
        reason = self.skipped.get(key)
        if reason:
            raise KernelRule.VARIANT_MISSING(
                f"{self.name} leaves {key} out: {reason}",
                hint=f"{self.target} cannot run this variant; another one has to be chosen.",
            )
        raise KernelRule.VARIANT_MISSING(
            f"{self.name} ({self.target}, zse {self.provenance['zse']}) holds no kernel {key}"
        )


def _map_file(path: Path) -> memoryview:
    try:
        file = open_file(path)
    except NotFoundError as error:
        raise NotFoundError(error.message, hint="Build one with `zse kernels build`.") from None
    size_bytes, _ = file.opened_state
    if size_bytes == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fd, size_bytes, access=mmap.ACCESS_READ))


def _check_spelling(what: str, raw: bytes) -> None:
    if dump_canonical(json.loads(raw)) != raw:
        raise Rule.NOT_CANONICAL(f"{what} is not in its canonical spelling")
