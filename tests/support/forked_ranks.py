"""Ranks as forked processes over shared memory: interpreted kernels that really wait for each other.

Memory of ``SharedTensors`` lies at the same addresses in all of them. A rank that fails, or takes
too long, fails the test.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING

import torch

from zse.kernels.exchange.launch import Exchange, inbox_bytes, slot_words_for, state_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS = 240


class SharedTensors:
    """Makes tensors that forked processes share."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        length = max(1, torch.Size(shape).numel()) * dtype.itemsize
        pages = mmap.mmap(-1, length)
        self._maps.append(pages)
        return torch.frombuffer(pages, dtype=dtype)[: torch.Size(shape).numel()].view(*shape)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.empty(*tensor.shape, dtype=tensor.dtype).copy_(tensor)


class Group:
    """Inboxes and counters of some ranks, as ``open_collectives`` makes them."""

    def __init__(
        self, ranks: int, *, programs: int = 2, hidden: int = 0, patience_seconds: float = 30
    ) -> None:
        self.memory = SharedTensors()
        self.ranks, self.programs = ranks, programs
        self.slot_words = slot_words_for(hidden)
        words = inbox_bytes(ranks, programs, self.slot_words) // 4
        self.inboxes = [self.memory.empty(words, dtype=torch.int32).fill_(-1) for _ in range(ranks)]
        self.states = [
            self.memory.empty(state_bytes(programs) // 4, dtype=torch.int32) for _ in range(ranks)
        ]
        self.failed = [self.memory.empty(1, dtype=torch.int32) for _ in range(ranks)]
        self.broken = self.memory.empty(1, dtype=torch.int32)
        self._offsets = [
            torch.tensor([(i.data_ptr() - own.data_ptr()) // 4 for i in self.inboxes])
            for own in self.inboxes
        ]
        self._patience = int(patience_seconds * 1e9)

    def exchange(self, rank: int) -> Exchange:
        return Exchange(
            rank=rank,
            ranks=self.ranks,
            words=self.inboxes[rank].data_ptr(),
            offsets=self._offsets[rank].data_ptr(),
            state=self.states[rank].data_ptr(),
            failed=self.failed[rank].data_ptr(),
            broken=self.broken.data_ptr(),
            slot_words=self.slot_words,
            programs=self.programs,
            patience_nanoseconds=self._patience,
        )

    def check_empty(self) -> None:
        """Nothing that was sent lies about, and nobody gave up."""
        for inbox, state, failed in zip(self.inboxes, self.states, self.failed, strict=True):
            assert bool((inbox == -1).all())
            assert (int(state[0]), int(failed[0])) == (0, 0)


def run_ranks(works: Sequence[Callable[[], None]]) -> None:
    """Do one work in each of as many processes, at once."""
    sys.stdout.flush()
    children = {_fork(work): rank for rank, work in enumerate(works)}
    end, failed = time.monotonic() + SECONDS, []
    while children and time.monotonic() < end:
        for child in list(children):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                rank = children.pop(child)
                if status:
                    failed.append(rank)
        time.sleep(0.002)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not failed, f"ranks {failed} failed: see stderr"
    assert not children, f"ranks {sorted(children.values())} took more than {SECONDS} s"


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # noqa: BLE001 - whatever it is, it must not run the parent's tests
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with bytes that no result has."""
    ctypes.memset(tensor.data_ptr(), 0xC7, tensor.numel() * tensor.element_size())
    return tensor
