"""Writes prefix packs, from images that are asked for twice: once for digests, once to be written.

So a pack of gigabytes is never in memory as a whole, and its bytes come in order: they can go to a
file, through a cipher or to an object as they are made.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from zse.format.container import PREFIX_BYTES
from zse.format.header_json import dump_canonical
from zse.format.spec import PAGE
from zse.kv.prefix_pack import CHUNK_BYTES, CONTAINER, IMAGE_ALIGN, SavedRun
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.kv.prefix_pack import PrefixBinding


class Image(Protocol):
    """Returns the bytes of some blocks of one group; the same each time."""

    def __call__(self, group: int, blocks: Sequence[int], /) -> bytes | bytearray: ...


@record
class RunToSave:
    """A run, and which blocks of the pool hold it."""

    token_ids: Sequence[int]
    blocks: Sequence[int]
    windows: Sequence[Sequence[int]]
    """Blocks of each further group: those that a token behind this run sees, or none."""
    parent: int = -1
    """Its place among the runs before it."""
    salt: str = ""
    is_public: bool = False
    name: str = ""


def pack_bytes(
    binding: PrefixBinding, runs: Sequence[RunToSave], image: Image
) -> Iterator[bytes | bytearray]:
    """Yield the bytes of a pack, in order."""
    start, placed = 0, _placed(binding, runs, 0)
    while (needed := _data_start(_header(binding, placed))) != start:
        start, placed = needed, _placed(binding, runs, needed)  # larger offsets have more digits
    found = [
        replace(place, sha256=_digests(_run_bytes(run, image)))
        for place, run in zip(placed, runs, strict=True)
    ]
    sealed = CONTAINER.seal(_header(binding, found))
    yield sealed
    end = len(sealed)
    for place, run in zip(found, runs, strict=True):
        yield bytes(place.offset - end)
        yield from _run_bytes(run, image)
        end = place.offset + place.length_bytes(binding)
    yield bytes(align_up(end, PAGE) - end)


def run_length(binding: PrefixBinding, run: RunToSave) -> int:
    """Return the bytes that a run takes in a pack."""
    return align_up(_placed(binding, [run], 0)[0].length_bytes(binding), PAGE)


def _placed(binding: PrefixBinding, runs: Sequence[RunToSave], start: int) -> list[SavedRun]:
    """Return where runs lie, from some byte on, with digests that are as long as the real ones."""
    placed: list[SavedRun] = []
    for run in runs:
        place = SavedRun(
            name=run.name,
            salt=run.salt,
            is_public=run.is_public,
            parent=run.parent,
            num_blocks=len(run.blocks),
            windows=tuple(map(len, run.windows)),
            offset=start,
            sha256=(),
        )
        length = place.length_bytes(binding)
        placed.append(replace(place, sha256=("0" * 64,) * -(-length // CHUNK_BYTES)))
        start = align_up(start + length, PAGE)
    return placed


def _header(binding: PrefixBinding, runs: Sequence[SavedRun]) -> bytes:
    listed = [{**_plain(run), "parent": [] if run.parent < 0 else [run.parent]} for run in runs]
    return dump_canonical({"binding": _plain(binding), "runs": listed})


def _data_start(header: bytes) -> int:
    return align_up(PREFIX_BYTES + len(header), PAGE)


def _plain(record: PrefixBinding | SavedRun) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _digests(pieces: Iterator[bytes | bytearray]) -> tuple[str, ...]:
    """Return the SHA-256 of each 4 MiB of some bytes."""
    found: list[str] = []
    digest, room = hashlib.sha256(), CHUNK_BYTES
    for piece in pieces:
        view = memoryview(piece)
        while view:
            part, view = view[:room], view[room:]
            digest.update(part)
            room -= len(part)
            if not room:
                found.append(digest.hexdigest())
                digest, room = hashlib.sha256(), CHUNK_BYTES
    return (*found, digest.hexdigest()) if room < CHUNK_BYTES else tuple(found)


def _run_bytes(run: RunToSave, image: Image) -> Iterator[bytes | bytearray]:
    tokens = array("I", run.token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    data = tokens.tobytes()
    yield data + bytes(align_up(len(data), IMAGE_ALIGN) - len(data))
    for group, blocks in enumerate((run.blocks, *run.windows)):
        if blocks:
            yield image(group, blocks)
