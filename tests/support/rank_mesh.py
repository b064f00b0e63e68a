"""Processes that are ranks, each with a socket to every other: ``RankLink`` as simply as it goes.

``run(["tests/support/some_script.py", ...], ranks)`` starts a script once a rank; in it ``Mesh()`` is
the link. Only the standard library is needed.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from zse.backends.ranks import Gift, Share

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "ZSE_TEST_MESH"


class Mesh:
    """See ``zse.backends.ranks.RankLink``."""

    def __init__(self) -> None:
        rank, memory, *sockets = map(int, os.environ[VARIABLE].split(","))
        self.share = Share(rank=rank, ranks=len(sockets))
        self._peers = [None if number < 0 else socket.socket(fileno=number) for number in sockets]
        pages = mmap.mmap(memory, 4096)
        self._word = ctypes.c_int32.from_buffer(pages)
        self.broken_address = ctypes.addressof(self._word)

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        for peer in self._peers:
            if peer is not None:
                length = len(payload).to_bytes(4, "little")
                rights = array.array("i", descriptors)
                control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                peer.sendmsg([length + payload], control)
        return [
            Gift(payload, tuple(descriptors)) if peer is None else self._receive(peer)
            for peer in self._peers
        ]

    @staticmethod
    def _receive(peer: socket.socket) -> Gift:
        data, found, _, _ = socket.recv_fds(peer, 4, 8)
        length = int.from_bytes(data, "little")
        payload = b""
        while len(payload) < length:
            more, others, _, _ = socket.recv_fds(peer, length - len(payload), 8)
            assert more, "a rank is gone"
            payload += more
            found += others
        return Gift(payload, tuple(found))

    def least(self, numbers: Sequence[int]) -> list[int]:
        told = self.exchange(",".join(map(str, numbers)).encode())
        each = [list(map(int, gift.payload.split(b","))) for gift in told]
        return [min(column) for column in zip(*each, strict=True)]

    def barrier(self) -> None:
        self.exchange(b"here")

    def check(self) -> None:
        """No rank is known to have failed."""


def run(command: Sequence[str], ranks: int, *, timeout_seconds: float = 120) -> list[str]:
    """Run a Python script once a rank; return what each printed.

    Raises:
        AssertionError: One of them failed or took too long; all are ended.
    """
    pairs = {
        (one, other): socket.socketpair() for one in range(ranks) for other in range(one + 1, ranks)
    }
    memory = os.memfd_create("ranks")
    os.ftruncate(memory, 4096)
    with contextlib.ExitStack() as held:
        held.callback(os.close, memory)
        for pair in pairs.values():
            for end in pair:
                held.enter_context(end)
        processes = []
        for rank in range(ranks):
            ends = [-1] * ranks
            for (one, other), pair in pairs.items():
                if rank == one:
                    ends[other] = pair[0].fileno()
                if rank == other:
                    ends[one] = pair[1].fileno()
            numbers = [memory, *(end for end in ends if end >= 0)]
            told = ",".join(map(str, (rank, memory, *ends)))
            process = subprocess.Popen(
                [sys.executable, *command], pass_fds=numbers, env=os.environ | {VARIABLE: told},
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            processes.append(held.enter_context(process))
            held.callback(process.kill)
        return _outputs(processes, time.monotonic() + timeout_seconds)


def _outputs(processes: Sequence[subprocess.Popen[str]], end: float) -> list[str]:
    found = []
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}: {output}"
        found.append(output)
    return found
