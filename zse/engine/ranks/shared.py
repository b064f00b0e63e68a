"""The memory that ranks share: a word that says that they failed, bells, a ring of messages.

    page 0    not 0: the ranks have failed
    page 1    bells: messages that were sent; then, for each rank, those that it has done
    page 2    for each of the last messages where it lies, and how long it is
    page 3    bells of the ways from stage to stage: pieces that have come, pieces that are taken
    page 4..  the ring, and behind it what the backends asked for

It is a file of this machine's memory without a name, which processes inherit: it goes with the last
of them, however they end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import TYPE_CHECKING

from zse.errors import EngineError
from zse.kernels.native.codes import BELL_BYTES
from zse.units import MIB, align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.kernels.native.library import Library

RING_BYTES = 32 * MIB
MOST_IN_FLIGHT = 256
_PAGE = 4096
_BELLS, _SLOTS, _GATES, _RING = _PAGE, 2 * _PAGE, 3 * _PAGE, 4 * _PAGE
_OPEN = (1 << 31) - 1
"""What bells of ways are at when nobody shall wait for them any more, as an int32 too."""
_AREA = _RING + RING_BYTES
_SLOT = struct.Struct("=QQ")
_LOOK_NANOSECONDS = 100_000_000


class SharedMemory:
    """The pages of all ranks; a descriptor of another process's makes it the same."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("zse-ranks", os.MFD_CLOEXEC)
            os.ftruncate(fd, _AREA)
        self.fd = fd
        self._map = mmap.mmap(fd, _AREA)
        self._areas: list[mmap.mmap] = []
        self._end = _AREA
        self.view = memoryview(self._map)
        self.address = _address_of(self._map)
        self._broken = self.view[:4].cast("i")
        self._counts = self.view[_BELLS : _BELLS + _PAGE].cast("Q")

    def close(self) -> None:
        """Give the descriptor back; the pages go with the last who looks at them."""
        os.close(self.fd)

    @property
    def broken_address(self) -> int:
        return self.address

    @property
    def is_broken(self) -> bool:
        return self._broken[0] != 0

    def break_off(self) -> None:
        """Say that the ranks have failed; whoever waits for one stops to.

        GPUs that wait for rows from stage to stage look at nothing but their bells.
        """
        self._broken[0] = 1
        gates = self.view[_GATES : _GATES + _PAGE].cast("Q")
        for at in range(0, len(gates), BELL_BYTES // 8):
            gates[at] = _OPEN

    @property
    def gates_address(self) -> int:
        """Of a page that holds nothing but bells of ways."""
        return self.address + _GATES

    def gate(self, number: int) -> int:
        """Return the address of a bell of a way between stages."""
        return self.gates_address + number * BELL_BYTES

    def bell(self, number: int) -> int:
        """Return the address of a bell: 0 is that of messages, 1 + r that of rank r."""
        return self.address + _BELLS + number * BELL_BYTES

    def count(self, number: int) -> int:
        return int(self._counts[number * BELL_BYTES // 8])

    def area(self, length_bytes: int) -> int:
        """Return the address of memory behind the ring; all ranks ask as often, for as much."""
        end = self._end + align_up(length_bytes, _PAGE)
        if os.fstat(self.fd).st_size < end:
            os.ftruncate(self.fd, end)
        self._areas.append(mmap.mmap(self.fd, length_bytes, offset=self._end))
        self._end = end
        return _address_of(self._areas[-1])

    def moved(self, ranks: int) -> tuple[int, ...]:
        """Return numbers that change as long as a step goes on: messages done, and sums."""
        done = tuple(self.count(1 + rank) for rank in range(ranks))
        gates = self.view[_GATES : _GATES + _PAGE].cast("Q")
        pieces = tuple(gates[:: BELL_BYTES // 8])
        if not self._areas or len(self._areas[-1]) < ranks * BELL_BYTES:
            return done + pieces
        sums = memoryview(self._areas[-1])[: ranks * BELL_BYTES].cast("Q")
        return done + pieces + tuple(sums[rank * BELL_BYTES // 8] for rank in range(ranks))

    def put_slot(self, number: int, offset: int, length: int) -> None:
        _SLOT.pack_into(self.view, _SLOTS + number % MOST_IN_FLIGHT * _SLOT.size, offset, length)

    def message(self, number: int) -> memoryview:
        offset, length = _SLOT.unpack_from(self.view, _SLOTS + number % MOST_IN_FLIGHT * _SLOT.size)
        return self.view[_RING + offset : _RING + offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self.view[_RING + offset : _RING + offset + len(data)] = data


class Sender:
    """Rank 0's side of the ring. What all ranks have done makes room.

    Args:
        shared: The pages.
        library: What rings bells.
        ranks: How many there are, this one included.
        check: Raises where the ranks have failed.
    """

    def __init__(
        self, shared: SharedMemory, library: Library, ranks: int, check: Callable[[], None]
    ) -> None:
        self._shared, self._library = shared, library
        self.others = range(1, ranks)
        self._check = check
        self._end = 0
        self.num_sent = 0

    @property
    def num_done(self) -> int:
        """Messages that every rank has done."""
        return min(self._shared.count(1 + rank) for rank in self.others)

    def send(self, data: bytes) -> None:
        """Send a message to all ranks.

        Raises:
            EngineError: It is larger than the ring.
            DeviceError: The ranks have failed.
        """
        self._check()
        if len(data) > RING_BYTES:
            raise EngineError(
                f"a step of {len(data)} bytes is more than the {RING_BYTES} of the ranks' ring"
            )
        done = self.num_done
        if self.num_sent - done >= MOST_IN_FLIGHT - 1:
            self._wait_until_done(self.num_sent - MOST_IN_FLIGHT // 2)
        if done == self.num_sent:
            self._end = 0  # what was written a moment ago is still in the processor's cache
        elif self._end + len(data) > RING_BYTES:
            self._wait_until_done(self.num_sent)
            self._end = 0
        self._shared.write(self._end, data)
        self.num_sent += 1
        self._shared.put_slot(self.num_sent, self._end, len(data))
        self._library.ring(self._shared.bell(0), self.num_sent)
        self._end += len(data)

    def wait_until_done(self) -> None:
        """Wait until every rank has done all messages.

        Raises:
            DeviceError: The ranks have failed.
        """
        self._wait_until_done(self.num_sent)

    def _wait_until_done(self, number: int) -> None:
        for rank in self.others:
            while not self._library.wait(
                self._shared.bell(1 + rank),
                number,
                spin_ns=0,
                timeout_ns=_LOOK_NANOSECONDS,
                broken=self._shared.broken_address,
            ):
                self._check()


class Receiver:
    """Another rank's side of the ring.

    Args:
        shared: The pages.
        library: What waits for bells.
        rank: Which one this is.
        spin_ns: How long it looks for a message before it sleeps.
    """

    def __init__(self, shared: SharedMemory, library: Library, rank: int, *, spin_ns: int) -> None:
        self._shared, self._library, self._rank = shared, library, rank
        self._spin_ns = spin_ns
        self._number = 0

    def receive(self) -> memoryview | None:
        """Return the next message, or None when none came for a while or the ranks have failed.

        It is read before ``done``.
        """
        has_come = self._library.wait(
            self._shared.bell(0),
            self._number + 1,
            spin_ns=self._spin_ns,
            timeout_ns=_LOOK_NANOSECONDS,
            broken=self._shared.broken_address,
        )
        return self._shared.message(self._number + 1) if has_come else None

    def done(self) -> None:
        """Say that a message is of no more use to this rank."""
        self._number += 1
        self._library.ring(self._shared.bell(1 + self._rank), self._number)


def _address_of(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
