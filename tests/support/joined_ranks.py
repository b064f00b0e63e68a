"""Ranks of one model as threads of this process: the same kernels and memory, no process to start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from zse.backends.cpu.memory import Pages
from zse.backends.ranks import Gift, Share
from zse.engine.ranks.stages import Places, place_part
from zse.errors import DeviceError
from zse.format import ZSEReader
from zse.kernels.native.codes import BELL_BYTES
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from zse.options import LoadOptions


class Board:
    """What threads that stand for ranks share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.given: list[Gift | None] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.broken = Pages(4096)
        self.shared: list[Pages] = []
        self.gates = Pages(1 << 16)
        self.lock = threading.Lock()


class ThreadLink:
    """See ``zse.backends.ranks.RankLink``."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.share = Share(rank=rank, ranks=board.ranks)
        self.broken_address = board.broken.address
        self.shared = self
        self._num_areas = 0

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        board = self._board
        board.given[self.share.rank] = Gift(payload, tuple(descriptors))
        board.barrier.wait()
        found = [gift for gift in board.given if gift is not None]
        board.barrier.wait()
        return found

    def least(self, numbers: Sequence[int]) -> list[int]:
        gifts = self.exchange(",".join(map(str, numbers)).encode())
        rows = [[int(each) for each in gift.payload.split(b",")] for gift in gifts]
        return [min(column) for column in zip(*rows, strict=True)]

    def memory(self, length_bytes: int) -> int:
        with self._board.lock:
            if len(self._board.shared) == self._num_areas:
                self._board.shared.append(Pages(length_bytes))
            self._num_areas += 1
            return self._board.shared[self._num_areas - 1].address

    def gate(self, number: int) -> int:
        """Return the address of a bell between stages, as the ranks' shared pages do."""
        return self._board.gates.address + number * BELL_BYTES

    def check(self) -> None:
        if int.from_bytes(self._board.broken.view[:4], "little"):
            raise DeviceError("the ranks have failed")


def _load(path: Path, options: LoadOptions, link: ThreadLink, places: Places) -> ModelRunner:
    with ZSEReader(path) as reader:
        part = place_part(spec_of(reader), reader.header.loaded(), link, places)
    return load_runner(path, options, part=part)


class JoinedRunners:
    """Runners of all ranks, each in a thread of its own."""

    def __init__(self, path: Path, places: Places, **options: Any) -> None:
        ranks = places.num_ranks * places.num_stages
        self.board = Board(ranks)
        self._pool = ThreadPoolExecutor(ranks)
        links = [ThreadLink(self.board, rank) for rank in range(ranks)]
        asked = load_options(**options)
        loaded = [self._pool.submit(_load, path, asked, link, places) for link in links]
        self.runners: list[ModelRunner] = [each.result() for each in loaded]

    def each(self, work: Callable[[ModelRunner], Any]) -> list[Any]:
        """Return what some work with each runner returns, rank 0's first."""
        return [
            each.result() for each in [self._pool.submit(work, runner) for runner in self.runners]
        ]

    def close(self) -> None:
        with ExitStack() as stack:
            for runner in self.runners:
                stack.callback(runner.close)
        self._pool.shutdown()


@contextmanager
def joined_runners(path: Path, ranks: int, **options: Any) -> Iterator[JoinedRunners]:
    """Give the runners of a model that so many ranks compute."""
    with joined_stages(path, Places(num_ranks=ranks, ends=(0,)), **options) as joined:
        yield joined


@contextmanager
def joined_stages(path: Path, places: Places, **options: Any) -> Iterator[JoinedRunners]:
    """Give the runners of ranks that stand so; those of the last stage are the first."""
    joined = JoinedRunners(path, places, **options)
    try:
        yield joined
    finally:
        joined.close()
