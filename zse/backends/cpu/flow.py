"""How the stream goes from one stage's process to the next: through memory that both map.

The way is a ring of slots of a few hundred rows. Who sends waits where the slot has not been read,
and who receives waits for the rows; a long prompt goes on its way in pieces.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.backends.resident import ROWS_AT_ONCE
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.ranks import Gate, StageEdges
    from zse.kernels.native.library import Library

_SLOTS = 8
_PAGE = 4096
_LOOK_NANOSECONDS = 100_000_000
_NUMBER_BYTES = 4


class StreamFlow:
    """The stream's way to this process, and from it.

    Args:
        edges: The stages beside this one.
        width: Numbers of a row.
        library: What rings bells.
        spin_nanoseconds: How long rows are looked for before this process sleeps.
    """

    def __init__(
        self, edges: StageEdges, width: int, library: Library, *, spin_nanoseconds: int
    ) -> None:
        self._edges, self._width, self._library = edges, width, library
        self._spin_nanoseconds = spin_nanoseconds
        self._slot_bytes = align_up(ROWS_AT_ONCE * width * _NUMBER_BYTES, _PAGE)
        self._address = edges.link.memory(edges.num_gates * _SLOTS * self._slot_bytes)
        self._num_received = self._num_sent = 0

    def receive(self, num_rows: int) -> memoryview[float] | None:
        """Return the next rows of the stage before, float32 [rows * width]; None: tokens come.

        Raises:
            DeviceError: The ranks have failed.
        """
        gate = self._edges.arrives
        if gate is None:
            return None
        rows = memoryview(bytearray(num_rows * self._width * _NUMBER_BYTES))
        for first, end in self._pieces(rows):
            self._num_received += 1
            self._wait(gate.sent, self._num_received)
            rows[first:end] = self._slot(gate, self._num_received, end - first)
            self._library.ring(gate.taken, self._num_received)
        return rows.cast("f")

    def send(self, rows: memoryview[float]) -> None:
        """Send rows to the next stage; waits where that is far behind.

        Raises:
            DeviceError: The ranks have failed.
        """
        gate = self._edges.leaves
        assert gate is not None
        data = rows.cast("B")
        for first, end in self._pieces(data):
            self._num_sent += 1
            self._wait(gate.taken, self._num_sent - _SLOTS)
            self._slot(gate, self._num_sent, end - first)[:] = data[first:end]
            self._library.ring(gate.sent, self._num_sent)

    def _pieces(self, data: memoryview) -> Iterator[tuple[int, int]]:
        most = ROWS_AT_ONCE * self._width * _NUMBER_BYTES
        for first in range(0, len(data), most):
            yield first, min(first + most, len(data))

    def _slot(self, gate: Gate, number: int, length_bytes: int) -> memoryview:
        place = gate.number * _SLOTS + number % _SLOTS
        address = self._address + place * self._slot_bytes
        return memoryview((ctypes.c_char * length_bytes).from_address(address)).cast("B")

    def _wait(self, bell: int, number: int) -> None:
        if number <= 0:
            return
        link = self._edges.link
        while not self._library.wait(
            bell,
            number,
            spin_ns=self._spin_nanoseconds,
            timeout_ns=_LOOK_NANOSECONDS,
            broken=link.broken_address,
        ):
            link.check()
