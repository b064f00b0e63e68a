"""The memory that the ranks of a stage share: a step's rows, and each rank's keys and values.

A file without a name that rank 0 makes and hands round: the stream comes to rank 0 alone, and what
a standby is sent has the blocks of all ranks, so both go through here, in one copy each.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import msgspec

from zse.backends.types import MAX_DRAFTS
from zse.engine.ranks.opening import kind_of
from zse.errors import DeviceError
from zse.units import MIB, align_up

if TYPE_CHECKING:
    from zse.backends.ranks import RankLink
    from zse.mesh.stage_parts import StagePart
    from zse.options import LoadOptions

_PAGE = 4096
_NUMBER_BYTES = 4
_IMAGE_BYTES = 8 * MIB
"""Of blocks of one rank that are copied at once; at least one block is."""


class StageMemory:
    """See above.

    Args:
        fd: Of the file, which is this object's from here on.
        rows_bytes: Of the most rows that a step has.
        block_bytes: Of a block of one rank; all have as many.
        blocks_at_once: Of each rank that there is room for.
        ranks: How many there are.
    """

    def __init__(
        self, fd: int, *, rows_bytes: int, block_bytes: int, blocks_at_once: int, ranks: int
    ) -> None:
        self._rows_bytes = align_up(rows_bytes, _PAGE)
        self.blocks_at_once = blocks_at_once
        self._image_bytes = align_up(blocks_at_once * block_bytes, _PAGE)
        self._block_bytes = block_bytes
        length_bytes = self._rows_bytes + ranks * self._image_bytes
        try:
            if os.fstat(fd).st_size < length_bytes:
                os.ftruncate(fd, length_bytes)
            self._map = mmap.mmap(fd, length_bytes)
        finally:
            os.close(fd)
        self._view = memoryview(self._map)

    def rows(self, count: int, width: int) -> memoryview[float]:
        """Return float32 [count * width]."""
        return self._view[: _NUMBER_BYTES * count * width].cast("f")

    def image(self, rank: int, num_blocks: int) -> memoryview:
        """Return where so many blocks of a rank lie, one behind the other."""
        first = self._rows_bytes + rank * self._image_bytes
        return self._view[first : first + num_blocks * self._block_bytes]


def most_rows_of(options: LoadOptions) -> int:
    """Return how many rows a step has at most."""
    return max(options.batch.max_batch_tokens, options.batch.max_sequences + MAX_DRAFTS)


def join_memory(
    link: RankLink, part: StagePart, options: LoadOptions
) -> tuple[StageMemory, list[bytes]]:
    """Return the memory of all ranks of a stage, and what computes for each; all call it once.

    Args:
        link: To the other ranks.
        part: What this one computes.
        options: What all of them load with.

    Raises:
        DeviceError: Another rank is lost, or keeps other blocks.
    """
    blocks_at_once = max(1, _IMAGE_BYTES // part.block_bytes)
    own = msgspec.msgpack.encode((kind_of(part.device), part.block_bytes, blocks_at_once))
    is_first = link.share.rank == 0
    gifts = link.exchange(own, [os.memfd_create("zse-stage", os.MFD_CLOEXEC)] if is_first else [])
    said = [msgspec.msgpack.decode(gift.payload, type=tuple[bytes, int, int]) for gift in gifts]
    memory = StageMemory(
        gifts[0].descriptors[0],
        rows_bytes=most_rows_of(options) * part.width * _NUMBER_BYTES,
        block_bytes=part.block_bytes,
        blocks_at_once=said[0][2],
        ranks=link.share.ranks,
    )
    sizes = [size for _, size, _ in said]
    if len(set(sizes)) > 1:
        raise DeviceError(f"the ranks of a stage keep blocks of {sizes} bytes, not of one size")
    return memory, [kind for kind, _, _ in said]
