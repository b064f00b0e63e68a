"""A rank of a stage, other than the first: its share of each layer, as rank 0 says."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from zse.backends.ranks import Share
from zse.engine.ranks.links import MemberLink
from zse.engine.ranks.messages import End
from zse.engine.ranks.shared import Receiver
from zse.engine.ranks.worker import be_rank
from zse.errors import EngineError
from zse.format.reader import ZSEReader
from zse.kernels.native.library import load
from zse.mesh.batches import read_batch
from zse.mesh.rank_messages import Compute, ReadBlocks, WriteBlocks, read
from zse.mesh.stage_memory import join_memory
from zse.mesh.stage_parts import open_part
from zse.options import load_options

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from zse.engine.ranks.links import Task
    from zse.engine.ranks.shared import SharedMemory
    from zse.mesh.rank_messages import RankMessage
    from zse.mesh.stage_memory import StageMemory
    from zse.mesh.stage_parts import StagePart
    from zse.options import LoadFields


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a rank of a stage until rank 0 says the end, or ends."""
    be_rank(arguments, _serve)


def _serve(task: Task, file_fd: int, shared: SharedMemory, leader: socket.socket) -> None:
    options = load_options(**cast("LoadFields", task.options))
    link = MemberLink(Share(rank=task.rank, ranks=len(task.devices)), shared, leader)
    library = load(options.device.cpu_instructions)
    receiver = Receiver(shared, library, task.rank, spin_ns=task.spin_nanoseconds)
    first_layer, end_layer = task.layers
    part = open_part(
        ZSEReader(f"/proc/self/fd/{file_fd}"),
        (first_layer, end_layer),
        options,
        cache_dir=None if task.cache_dir is None else Path(task.cache_dir),
        link=link,
    )
    rank = _Rank(part, join_memory(link, part, options)[0], task.rank)
    is_over = False
    while not is_over:
        data = receiver.receive()
        if data is None:
            link.check()
            continue
        message = read(data)
        is_over = isinstance(message, End)
        rank.do(message)
        receiver.done()
    part.close()


class _Rank:
    """Does what the messages say, in their order."""

    def __init__(self, part: StagePart, memory: StageMemory, number: int) -> None:
        self._part, self._memory, self._number = part, memory, number

    def do(self, message: RankMessage) -> None:
        match message:
            case Compute():
                self._compute(message)
            case ReadBlocks():
                image = self._memory.image(self._number, len(message.blocks))
                image[:] = self._part.read_kv(message.blocks)
            case WriteBlocks():
                image = self._memory.image(self._number, len(message.blocks))
                self._part.write_kv(message.blocks, image)

    def _compute(self, message: Compute) -> None:
        batch = read_batch(message.batch, self._part.stage.model.vocab_size)
        rows = None
        if message.num_rows:
            rows = self._memory.rows(message.num_rows, self._part.width)
        with contextlib.suppress(EngineError):  # it contradicts itself: rank 0 says so, and goes on
            self._part.compute(batch, rows)
