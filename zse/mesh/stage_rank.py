"""A rank of a stage, other than the first: its share of each layer, as rank 0 says."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NoReturn

from zse.engine.ranks.messages import End
from zse.engine.ranks.worker import be_rank
from zse.errors import EngineError
from zse.mesh.batches import read_batch
from zse.mesh.rank_messages import Compute, ReadBlocks, WriteBlocks, read
from zse.mesh.stage_memory import join_memory
from zse.mesh.stage_parts import open_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.ranks.worker import Member
    from zse.format.reader import ZSEReader
    from zse.mesh.stage_memory import StageMemory
    from zse.mesh.stage_parts import StagePart


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a rank of a stage until rank 0 says the end, or ends."""
    be_rank(arguments, _serve)


def _serve(member: Member, reader: ZSEReader) -> None:
    options, link = member.options, member.link
    first_layer, end_layer = member.task.layers
    part = open_part(
        reader,
        (first_layer, end_layer),
        options,
        cache_dir=member.cache_dir,
        link=link,
        devices=member.task.devices,
    )
    memory, _ = join_memory(link, part, options)
    member.obey(_Rank(part, memory, link.share.rank).do)


class _Rank:
    """Does what the messages say, in their order."""

    def __init__(self, part: StagePart, memory: StageMemory, number: int) -> None:
        self._part, self._memory, self._number = part, memory, number

    def do(self, data: memoryview) -> bool:
        """Do what a message says; return whether it is the last one."""
        message = read(data)
        match message:
            case Compute():
                self._compute(message)
            case ReadBlocks():
                image = self._memory.image(self._number, len(message.blocks))
                image[:] = self._part.read_kv(message.blocks)
            case WriteBlocks():
                image = self._memory.image(self._number, len(message.blocks))
                self._part.write_kv(message.blocks, image)
            case End():
                self._part.close()
        return isinstance(message, End)

    def _compute(self, message: Compute) -> None:
        batch = read_batch(message.batch, self._part.stage.model.vocab_size)
        rows = None
        if message.num_rows:
            rows = self._memory.rows(message.num_rows, self._part.width)
        with contextlib.suppress(EngineError):  # it contradicts itself: rank 0 says so, and goes on
            self._part.compute(batch, rows)
