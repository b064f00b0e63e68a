"""Processes that are ranks, each with a socket to every other: ``RankLink`` as simply as it goes.

``run(["tests/support/some_script.py", ...], ranks)`` starts a script once a rank; in it
``Mesh.of_environment()`` is the link. Only the standard library is needed.
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
    """See ``zse.backends.ranks.RankLink``.

    Args:
        memory: Descriptor of a page that all ranks share.
        sockets: To each rank, a descriptor; -1 for this one.
    """

    def __init__(self, rank: int, memory: int, sockets: Sequence[int]) -> None:
        self.share = Share(rank=rank, ranks=len(sockets))
        self._peers = [
            None if number < 0 else socket.socket(fileno=os.dup(number)) for number in sockets
        ]
        self.broken = ctypes.c_int32.from_buffer(mmap.mmap(memory, 4096))
        self.broken_address = ctypes.addressof(self.broken)

    @classmethod
    def of_environment(cls) -> Mesh:
        """Return the link of a process that ``run`` has started."""
        rank, memory, *sockets = map(int, os.environ[VARIABLE].split(","))
        return cls(rank, memory, sockets)

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


class Wires:
    """What meshes of some ranks are made of: sockets between them and a page."""

    def __init__(self, ranks: int) -> None:
        self._held = contextlib.ExitStack()
        self.memory = os.memfd_create("ranks")
        self._held.callback(os.close, self.memory)
        os.ftruncate(self.memory, 4096)
        self.sockets = [[-1] * ranks for _ in range(ranks)]
        for one in range(ranks):
            for other in range(one + 1, ranks):
                ends = [self._held.enter_context(end) for end in socket.socketpair()]
                self.sockets[one][other], self.sockets[other][one] = (end.fileno() for end in ends)

    def close(self) -> None:
        self._held.close()


def run(command: Sequence[str], ranks: int, *, timeout_seconds: float = 120) -> list[str]:
    """Run a Python script once a rank; return what each printed.

    Raises:
        AssertionError: One of them failed or took too long; all are ended.
    """
    with contextlib.closing(Wires(ranks)) as wires, contextlib.ExitStack() as held:
        processes = []
        for rank, sockets in enumerate(wires.sockets):
            told = ",".join(map(str, (rank, wires.memory, *sockets)))
            process = subprocess.Popen(
                [sys.executable, *command],
                pass_fds=[wires.memory, *(number for number in sockets if number >= 0)],
                env=os.environ | {VARIABLE: told}, stdout=subprocess.PIPE, text=True,
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
