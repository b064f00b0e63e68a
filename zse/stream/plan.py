"""Which bytes of a file are read, in what order, and where in the device's block they go.

A placement says what of each group is read; here it is cut into chunks. Chunks stay inside their
group: a group is complete when its chunks are, and the price is one chunk a group that is a little
smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zse.errors import UsageError
from zse.format.errors import Misuse
from zse.format.spec import PAGE
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.format.spec import Group, ZSEHeader
    from zse.stream.placement import Placement, Run

CHUNK_BYTES = 8 << 20


class Chunk(NamedTuple):
    """One copy, and the reads for it. Of a group that is read whole it is a run of pages.

    A large model has thousands, and whoever makes them keeps the loading threads waiting.
    """

    group: int
    """Index of its group in ``ReadPlan.groups``."""
    offset_bytes: int
    """Of the first piece, in the file."""
    length_bytes: int
    """Of all pieces together."""
    destination_offset_bytes: int
    """Of the first piece, in the block."""
    num_pieces: int = 1
    stride_bytes: int = 0
    """From the start of a piece to the start of the next, in the file."""


@record
class GroupReads:
    """The chunks of one group, in file order."""

    name: str
    sha256: str
    """Empty where only a part of the group is read, of which its digest says nothing."""
    chunks: tuple[Chunk, ...]


@record
class ReadPlan:
    """Groups in execution order."""

    groups: tuple[GroupReads, ...]
    end_bytes: int
    """Offset in the file of the first byte after the last one that is read."""
    total_bytes: int
    largest_chunk_bytes: int
    """Size of the buffer that holds any chunk."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(chunk for group in self.groups for chunk in group.chunks)


def plan_reads(
    placement: Placement, *, groups: Sequence[str] | None = None, chunk_bytes: int = CHUNK_BYTES
) -> ReadPlan:
    """Plan the reading of a file's tensors.

    Args:
        placement: What of the file is read, and where it goes.
        groups: The groups to read, in this order; all in file order when not given. Where a group
            lies in the block does not depend on which others are read.
        chunk_bytes: Largest chunk; a multiple of 4096.

    Raises:
        UsageError: The chunk size is not a positive multiple of 4096.
        UnknownNameError: The file holds no such group.
    """
    if chunk_bytes <= 0 or chunk_bytes % PAGE:
        raise UsageError(f"chunk_bytes is {chunk_bytes}, expected a positive multiple of {PAGE}")
    header = placement.header
    chosen = header.groups if groups is None else _named(header, groups)
    reads = tuple(
        _plan_group(index, group, placement.runs(group), chunk_bytes)
        for index, group in enumerate(chosen)
    )
    lengths = [chunk.length_bytes for group in reads for chunk in group.chunks]
    return ReadPlan(
        groups=reads,
        end_bytes=max((group.end_bytes for group in chosen), default=0),
        total_bytes=sum(lengths),
        largest_chunk_bytes=max(lengths, default=0),
    )


def chunks_of(placement: Placement, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of a whole load in its order, each worked out when it is asked for."""
    for index, group in enumerate(placement.header.groups):
        for run in placement.runs(group):
            yield from _cut(index, run, chunk_bytes)


def _named(header: ZSEHeader, names: Sequence[str]) -> list[Group]:
    known = {group.name: group for group in header.groups}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Misuse.UNKNOWN_NAME(f"the file holds no group {', '.join(unknown)}")
    return [known[name] for name in names]


def _plan_group(index: int, group: Group, runs: tuple[Run, ...], chunk_bytes: int) -> GroupReads:
    is_whole = len(runs) == 1 and runs[0].piece_bytes == group.length_bytes
    return GroupReads(
        name=group.name,
        sha256=group.sha256 if is_whole else "",
        chunks=tuple(chunk for run in runs for chunk in _cut(index, run, chunk_bytes)),
    )


def _cut(index: int, run: Run, chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a run into the fewest chunks, all of about one size."""
    if run.num_pieces > 1 and run.piece_bytes <= chunk_bytes:
        yield from _cut_between_pieces(index, run, chunk_bytes)
        return
    count = -(-run.piece_bytes // chunk_bytes)
    size = align_up(-(-run.piece_bytes // count), PAGE)
    for piece in range(run.num_pieces):
        first = run.offset_bytes + piece * run.stride_bytes
        target = run.destination_offset_bytes + piece * run.piece_bytes
        for offset in range(0, run.piece_bytes, size):
            length = min(size, run.piece_bytes - offset)
            yield Chunk(index, first + offset, length, target + offset)


def _cut_between_pieces(index: int, run: Run, chunk_bytes: int) -> Iterator[Chunk]:
    most = chunk_bytes // run.piece_bytes
    each = -(-run.num_pieces // -(-run.num_pieces // most))
    for first in range(0, run.num_pieces, each):
        count = min(each, run.num_pieces - first)
        yield Chunk(
            group=index,
            offset_bytes=run.offset_bytes + first * run.stride_bytes,
            length_bytes=count * run.piece_bytes,
            destination_offset_bytes=run.destination_offset_bytes + first * run.piece_bytes,
            num_pieces=count,
            stride_bytes=run.stride_bytes,
        )
