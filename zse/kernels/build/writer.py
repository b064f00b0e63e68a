"""Writes a kernel pack: the same kernels give the same bytes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from zse.format.header_json import dump_canonical
from zse.kernels.pack import KernelPack
from zse.kernels.pack_header import ALIGN, CONTAINER
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zse.kernels.targets import Target


@record
class CompiledKernel:
    """One kernel as the compiler left it."""

    key: str
    """The variant's key."""
    facts: Mapping[str, Any]
    """What a launch needs; see ``zse.kernels.pack_header``."""
    cubin: bytes


def pack_bytes(
    target: Target,
    kernels: Iterable[CompiledKernel],
    *,
    provenance: Mapping[str, str],
    skipped: Mapping[str, str],
) -> bytes:
    """Return the bytes of a pack, its kernels sorted by key.

    Args:
        provenance: ``zse``, ``triton`` and ``ptxas`` versions, ``sources`` digest.
        skipped: Keys that the architecture cannot run, with the reason.

    Raises:
        KernelPackError: The pack would break a rule of the format.
    """
    entries, pieces, offset = [], [], 0
    for kernel in sorted(kernels, key=lambda kernel: kernel.key):
        facts = dump_canonical(kernel.facts)
        slot = padded(facts) + kernel.cubin
        entries.append(
            {
                "key": kernel.key,
                "offset_bytes": offset,
                "facts_bytes": len(facts),
                "code_bytes": len(kernel.cubin),
                "sha256": hashlib.sha256(slot).hexdigest(),
            }
        )
        pieces.append(padded(slot))
        offset += len(pieces[-1])
    document = {
        "entries": entries,
        "provenance": dict(provenance),
        "skipped": sorted([key, reason] for key, reason in skipped.items()),
        "target": target.name,
    }
    pack = assemble(dump_canonical(document), b"".join(pieces))
    KernelPack.open(pack).verify()
    return pack


def assemble(header: bytes, code: bytes) -> bytes:
    return padded(CONTAINER.seal(header)) + code


def padded(piece: bytes) -> bytes:
    return piece.ljust(align_up(len(piece), ALIGN), b"\0")
