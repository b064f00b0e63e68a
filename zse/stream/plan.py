"""Which bytes of a file are read, in what order, and where in the device's block they go.

The tensor region is one run of bytes with the layout of the device's memory, so a chunk's
destination is its offset within the region. Chunks stay inside their group: a group is complete
when its chunks are, and the price is one chunk a group that is a little smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.container import align_up
from zse.format.errors import Misuse
from zse.format.spec import PAGE
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.format.spec import Group, ZSEHeader

CHUNK_BYTES = 8 << 20


@record
class Chunk:
    """One read and one copy."""

    group: int
    """Index of its group in ``ReadPlan.groups``."""
    offset_bytes: int
    """In the file; a multiple of 4096."""
    length_bytes: int
    """A multiple of 4096."""
    destination_offset_bytes: int
    """In the device's block."""


@record
class GroupReads:
    """The chunks of one group, in file order."""

    name: str
    sha256: str
    chunks: tuple[Chunk, ...]


@record
class ReadPlan:
    """Groups in execution order."""

    groups: tuple[GroupReads, ...]
    end_bytes: int
    """Offset in the file of the first byte after the last one that is read."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk, in execution order."""
        return tuple(chunk for group in self.groups for chunk in group.chunks)

    @property
    def total_bytes(self) -> int:
        """Bytes that are read."""
        return sum(chunk.length_bytes for chunk in self.chunks)

    @property
    def largest_chunk_bytes(self) -> int:
        """Size of the buffer that holds any chunk."""
        return max((chunk.length_bytes for chunk in self.chunks), default=0)


def region_span(header: ZSEHeader) -> tuple[int, int]:
    """Return offset and length in bytes of the tensor region; the length is the block's size."""
    if not header.groups:
        return 0, 0
    start = header.groups[0].offset_bytes
    return start, header.groups[-1].end_bytes - start


def plan_reads(
    header: ZSEHeader, *, groups: Sequence[str] | None = None, chunk_bytes: int = CHUNK_BYTES
) -> ReadPlan:
    """Plan the reading of a file's tensors.

    Args:
        header: A validated header.
        groups: The groups to read, in this order; all in file order when not given. Where a group
            lies in the block does not depend on which others are read.
        chunk_bytes: Largest chunk; a multiple of 4096.

    Raises:
        UsageError: The chunk size is not a positive multiple of 4096. The file holds no such group.
    """
    if chunk_bytes <= 0 or chunk_bytes % PAGE:
        raise UsageError(f"chunk_bytes is {chunk_bytes}, expected a positive multiple of {PAGE}")
    chosen = list(header.groups) if groups is None else _named(header, groups)
    region_offset, _ = region_span(header)
    return ReadPlan(
        groups=tuple(
            GroupReads(
                name=group.name,
                sha256=group.sha256,
                chunks=_cut(index, group, region_offset, chunk_bytes),
            )
            for index, group in enumerate(chosen)
        ),
        end_bytes=max((group.end_bytes for group in chosen), default=0),
    )


def _named(header: ZSEHeader, names: Sequence[str]) -> list[Group]:
    known = {group.name: group for group in header.groups}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Misuse.UNKNOWN_NAME(f"the file holds no group {', '.join(unknown)}")
    return [known[name] for name in names]


def _cut(index: int, group: Group, region_offset: int, chunk_bytes: int) -> tuple[Chunk, ...]:
    """Cut a group into the fewest chunks, all of about one size."""
    count = -(-group.length_bytes // chunk_bytes)
    size = align_up(-(-group.length_bytes // max(count, 1)), PAGE)
    return tuple(
        Chunk(
            group=index,
            offset_bytes=offset,
            length_bytes=min(size, group.end_bytes - offset),
            destination_offset_bytes=offset - region_offset,
        )
        for offset in range(group.offset_bytes, group.end_bytes, max(size, 1))
    )
