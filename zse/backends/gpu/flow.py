"""How the stream goes from one stage's GPU to the next one's: into memory that both map.

The receiver has an inbox, a ring of slots of so many rows. Who sends copies rows into it, over
NVLink or PCIe, and then brings a bell in the host's memory to their number; the receiver's GPU
waits for that bell in its stream, takes the rows and rings back. The host waits for none of this,
so a step can stand in the stream before the one that feeds it has begun elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from zse.errors import DeviceError
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.gpu.host_flow import HostFlow
    from zse.backends.ranks import StageEdges
    from zse.backends.types import Answers
    from zse.device.gpu import Block, Event, Gpu, Stream

SLOTS, SLOT_ROWS = 4, 1024
"""A prompt's rows go in pieces; of decode steps each is one."""
_EVENTS = 8
"""More steps than a rank has in flight."""
_ALIGNMENT, _PAGE_BYTES, _NUMBER_BYTES = 256, 4096, 4
_BELL_VALUES = 1 << 32


class StreamFlow:
    """The stream's way to this GPU, and from it; ``close`` gives the memory back.

    All ranks of all stages make this at the same time.

    Args:
        edges: The stages beside this one.
        hidden: Columns of the stream.
        most_rows: Of a step.

    Raises:
        DeviceError: The GPUs do not see each other, another rank has failed, or the ranks are not
            of one model.
    """

    def __init__(
        self, gpu: Gpu, stream: Stream, edges: StageEdges, *, hidden: int, most_rows: int
    ) -> None:
        self._gpu, self._stream, self._edges = gpu, stream, edges
        self._row_bytes = hidden * _NUMBER_BYTES
        self._slot_rows = min(most_rows, SLOT_ROWS)
        self._slot_bytes = align_up(self._slot_rows * self._row_bytes, _ALIGNMENT)
        length = SLOTS * self._slot_bytes
        self._num_received = self._num_sent = self._num_passed = 0
        self._events: list[Event] = []
        self._inbox: Block | None = None
        self._next_inbox: Block | None = None
        with contextlib.ExitStack() as undone:
            undone.callback(self.close)
            gate = edges.arrives or edges.leaves
            assert gate is not None
            page = gate.sent & -_PAGE_BYTES
            self._bells = gpu.map_host(page, _PAGE_BYTES)
            self._bells_offset = self._bells.address - page
            self._share_inbox(length)
            self._events = [gpu.create_event() for _ in range(_EVENTS)]
            undone.pop_all()

    @property
    def num_stages(self) -> int:
        return self._edges.num_stages

    @property
    def length_bytes(self) -> int:
        """Device memory that is held."""
        return 0 if self._inbox is None else self._inbox.length_bytes

    def receive(self, residual: int, rows: int) -> None:
        """Have the next rows of the stage before come to an address, float32 [rows, hidden]."""
        gate = self._edges.arrives
        if gate is None:
            return
        assert self._inbox is not None
        sent, taken = self._bell(gate.sent), self._bell(gate.taken)
        for offset, length in self._pieces(rows):
            slot = self._inbox.address + self._num_received % SLOTS * self._slot_bytes
            self._num_received += 1
            number = self._num_received % _BELL_VALUES
            self._gpu.wait_for_value(sent, number, self._stream)
            self._gpu.copy_on_device(residual + offset, slot, length, self._stream)
            self._gpu.write_value(taken, number, self._stream)

    def send(self, residual: int, rows: int) -> None:
        """Have rows go to the next stage, when all before in the stream is done."""
        gate = self._edges.leaves
        assert gate is not None
        assert self._next_inbox is not None
        sent, taken = self._bell(gate.sent), self._bell(gate.taken)
        for offset, length in self._pieces(rows):
            slot = self._next_inbox.address + self._num_sent % SLOTS * self._slot_bytes
            self._num_sent += 1
            if self._num_sent > SLOTS:
                number = (self._num_sent - SLOTS) % _BELL_VALUES
                self._gpu.wait_for_value(taken, number, self._stream)
            self._gpu.copy_on_device(slot, residual + offset, length, self._stream)
            self._gpu.write_value(sent, self._num_sent % _BELL_VALUES, self._stream)

    def passed(self, num_chunks: int) -> PassedStep:
        """Return the step whose last work was enqueued just now: tokens are chosen elsewhere."""
        event = self._events[self._num_passed % _EVENTS]
        self._num_passed += 1
        event.record(self._stream)
        return PassedStep(self, event, num_chunks)

    def wait_for(self, event: Event) -> None:
        self._gpu.make_current()
        event.synchronize()
        self.check()

    def check(self) -> None:
        """Refuse what was computed of rows that nobody has sent.

        Raises:
            DeviceError: The ranks have failed.
        """
        self._edges.link.check()

    def close(self) -> None:
        """Give everything back; no rank may be computing any more."""
        for event in self._events:
            event.destroy()
        self._events = []
        for block in (self._next_inbox, self._inbox, getattr(self, "_bells", None)):
            if block is not None:
                block.free()
        self._next_inbox = self._inbox = None

    def _pieces(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where pieces of the stream begin, and how long they are, in bytes."""
        for first in range(0, rows, self._slot_rows):
            count = min(rows - first, self._slot_rows)
            yield first * self._row_bytes, count * self._row_bytes

    def _bell(self, address: int) -> int:
        return address + self._bells_offset

    def _share_inbox(self, length_bytes: int) -> None:
        """Make this GPU's inbox, if rows come to it, and map that of the next stage's."""
        edges, own = self._edges, []
        if edges.arrives is not None:
            inbox = self._inbox = self._gpu.allocate_shared(length_bytes)
            own.append(inbox.export())
        received: list[int] = []
        told = json.dumps({"inbox_bytes": length_bytes}).encode()
        try:
            gifts = edges.link.exchange(told, own)
            received = [fd for gift in gifts for fd in gift.descriptors if fd not in own]
            if edges.leaves is None:
                return
            gift = gifts[edges.receiver]
            if gift.payload != told or len(gift.descriptors) != 1:
                raise DeviceError(
                    f"rank {edges.receiver} has another inbox than this one expects: "
                    f"{gift.payload!r}; expected {told!r}",
                    hint="All ranks must be of one version of zse, and open the same model.",
                )
            self._next_inbox = self._gpu.open_shared(gift.descriptors[0], length_bytes)
        finally:
            for fd in (*own, *received):
                os.close(fd)


class PassedStep:
    """See ``zse.backends.operations.PendingStep``: of a stage before the last one."""

    def __init__(self, flow: StreamFlow | HostFlow, event: Event, num_chunks: int) -> None:
        self._flow, self._event, self._num_chunks = flow, event, num_chunks

    def sample(self) -> None:
        """The tokens are chosen elsewhere."""

    def wait(self) -> Answers:
        self._flow.wait_for(self._event)
        return [()] * self._num_chunks
