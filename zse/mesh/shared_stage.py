"""A stage whose layers several devices of this host share: rank 0 is the node, and speaks for all.

    the node: rows, blocks -> shared memory --+--> rank 0's share of each layer -> rows, tokens
                              a ring of steps +--> rank 1's share ...

Keys and values of all ranks go to a standby through rank 0, as one image, rank behind rank: the
wire between two hosts is one for all of them, so several senders would gain nothing, and need a
number and a sign each. A standby therefore has as many ranks; another one would add up in another
order, and its text could go on as another one.

Ranks live as long as their stage. What a lost or closed stage held is gone with its processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.stage_checks import check_image, num_rows_of
from zse.engine.ranks.devices import options_of
from zse.engine.ranks.group import RankGroup
from zse.engine.ranks.opening import check_alike
from zse.errors import DeviceError, EngineError
from zse.mesh.batches import write_batch
from zse.mesh.rank_messages import Compute, ReadBlocks, WriteBlocks, written
from zse.mesh.stage_memory import join_memory, most_rows_of
from zse.mesh.stage_parts import open_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from zse.backends.types import Answers, StepBatch
    from zse.errors import RankError
    from zse.format.reader import ZSEReader
    from zse.kernels.native.library import Library
    from zse.mesh.stage_memory import StageMemory
    from zse.mesh.stage_parts import StagePart
    from zse.models.stage import StageSpec
    from zse.options import LoadOptions

MEMBER = "zse.mesh.stage_rank"
"""What the other ranks are."""


class SharedStage:
    """See above, and ``CPUStage`` for what its methods mean.

    Args:
        part: Of rank 0.
        group: The other ranks, which have opened theirs.
        memory: Of all of them.
        most_rows: Of a step.
    """

    def __init__(
        self, part: StagePart, group: RankGroup, memory: StageMemory, *, most_rows: int
    ) -> None:
        self._part, self._group, self._memory = part, group, memory
        self._most_rows = most_rows
        self._ranks = len(group.devices)

    @property
    def stage(self) -> StageSpec:
        return self._part.stage

    @property
    def width(self) -> int:
        return self._part.width

    @property
    def library(self) -> Library:
        return self._part.library

    @property
    def block_size(self) -> int:
        return self._part.block_size

    @property
    def layout(self) -> str:
        return f"{self._ranks} of {self._part.layout}"

    @property
    def computed_by(self) -> str:
        return self._part.computed_by

    @property
    def block_bytes(self) -> int:
        """Of a block of all ranks."""
        return self._ranks * self._part.block_bytes

    def when_lost(self, tell: Callable[[RankError], None]) -> None:
        """Have the loss of a rank told, from another thread; nothing is computed here behind it."""
        self._group.when_failed(tell)

    def compute(
        self, batch: StepBatch, incoming: memoryview[float] | None = None
    ) -> memoryview[float] | Answers:
        """Compute a step of these layers, on all ranks.

        Raises:
            EngineError: The stream has other rows than the step, or the batch contradicts itself.
            RankError: A rank is lost.
        """
        num_rows = num_rows_of(batch, self.stage, incoming)
        if num_rows > self._most_rows:
            raise EngineError(f"a step of {num_rows} rows came, at most {self._most_rows} do")
        self._group.wait_until_done()  # the rows before these have been read
        if incoming is not None:
            self._memory.rows(num_rows, self.width)[:] = incoming
        data = write_batch(batch, self.stage.model.vocab_size)
        self._group.tell(written(Compute(data, 0 if incoming is None else num_rows)))
        try:
            return self._part.compute(batch, incoming)
        except DeviceError as error:  # the others are at another place of the step, or gone
            self._group.fail(f"rank 0 ({self._group.devices[0]}): {error}", error.hint or "")
            self._group.check()
            raise

    def read_kv(self, blocks: Sequence[int]) -> bytearray:
        """Return the content of some blocks, rank behind rank.

        Raises:
            RankError: A rank is lost.
        """
        image = bytearray(len(blocks) * self.block_bytes)
        for piece, places in self._pieces(blocks, memoryview(image)):
            self._group.tell(written(ReadBlocks(piece)))
            places[0][:] = self._part.read_kv(piece)
            self._group.wait_until_done()
            for rank in range(1, self._ranks):
                places[rank][:] = self._memory.image(rank, len(piece))
        return image

    def write_kv(self, blocks: Sequence[int], image: memoryview) -> None:
        """Write what ``read_kv`` of a stage with as many ranks returned.

        Raises:
            EngineError: It has another length, or a block is not there.
            RankError: A rank is lost.
        """
        check_image(blocks, image, block_bytes=self.block_bytes, num_blocks=self._part.num_blocks)
        for piece, places in self._pieces(blocks, image):
            self._group.wait_until_done()
            for rank in range(1, self._ranks):
                self._memory.image(rank, len(piece))[:] = places[rank]
            self._group.tell(written(WriteBlocks(piece)))
            self._part.write_kv(piece, places[0])

    def _pieces(
        self, blocks: Sequence[int], image: memoryview
    ) -> Iterator[tuple[list[int], list[memoryview]]]:
        """Cut blocks into pieces that the shared memory holds; say where each rank's lie."""
        each, size = self._memory.blocks_at_once, self._part.block_bytes
        for first in range(0, len(blocks), each):
            piece = list(blocks[first : first + each])
            starts = [(rank * len(blocks) + first) * size for rank in range(self._ranks)]
            yield piece, [image[start : start + len(piece) * size] for start in starts]

    def memory_bytes(self) -> dict[str, int]:
        """Return what all ranks hold together."""
        return {name: self._ranks * size for name, size in self._part.memory_bytes().items()}

    def close(self) -> None:
        self._group.close()
        self._part.close()


def open_shared_stage(
    reader: ZSEReader,
    layers: tuple[int, int],
    options: LoadOptions,
    devices: Sequence[str],
    *,
    cache_dir: Path | None,
) -> SharedStage:
    """Start the other ranks and return the stage when all have opened their shares.

    Args:
        reader, layers, cache_dir: See ``open_part``.
        options: How all of them load.
        devices: The name of each rank's device.

    Raises:
        UsageError: The model cannot be divided so.
        DeviceError: A rank failed, or the devices round in different ways.
    """
    group = RankGroup(reader, options, devices, cache_dir=cache_dir, member=MEMBER, layers=layers)
    part: StagePart | None = None
    try:
        own, link = options_of(options, devices, 0), group.link
        part = open_part(reader, layers, own, cache_dir=cache_dir, link=link, devices=devices)
        memory, kinds = join_memory(link, part, options)
        check_alike(kinds, len(devices))
    except BaseException:
        group.close()
        if part is not None:
            part.close()
        raise
    return SharedStage(part, group, memory, most_rows=most_rows_of(options))
