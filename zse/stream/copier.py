"""One thread's part of a load: a few pinned buffers, a stream, and chunks through them in turn."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.stream.plan import Chunk
    from zse.stream.source import ByteSource
    from zse.stream.target import CopyDevice, CopyEvent, CopyStream, HostBuffer


class _Slot:
    """A buffer, and the chunk that is on its way out of it."""

    def __init__(self, buffer: HostBuffer, event: CopyEvent) -> None:
        self.buffer = buffer
        self.event = event
        self.chunk: Chunk | None = None


class ChunkCopier:
    """Reads chunks into pinned memory and copies them to the device, a step ahead of the copies.

    Buffers are pinned when they are first needed: pinning costs about half a second a GB, so the
    first read starts after one buffer and a small model never pays for the whole ring.

    What Python does for a chunk is kept short: one thread runs Python at a time, and each call
    that lets the others run may have to wait for its turn afterwards.

    Args:
        gpu: The device.
        source: Where the bytes are.
        destination_address: The device's block.
        buffer_bytes: Size of a buffer; no chunk is larger.
        num_buffers: Buffers used in turn.
        landed: Called with each chunk that is in device memory.
    """

    def __init__(
        self,
        gpu: CopyDevice,
        source: ByteSource,
        destination_address: int,
        *,
        buffer_bytes: int,
        num_buffers: int,
        landed: Callable[[Chunk], None],
    ) -> None:
        self._gpu = gpu
        self._source = source
        self._destination = destination_address
        self._buffer_bytes = buffer_bytes
        self._num_buffers = num_buffers
        self._landed = landed
        self._slots: list[_Slot] = []
        self._stream: CopyStream | None = None
        self._turn = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def copy(self, chunk: Chunk, digest: Callable[[memoryview], object] | None = None) -> None:
        """Bring one chunk on its way.

        Args:
            chunk: What to read and where it goes.
            digest: Fed with the bytes that were read, while they are copied.

        Raises:
            ZSEError: What the source or the device raises.
        """
        slot = self._next_slot()
        with slot.buffer.view[: chunk.length_bytes] as view:
            started = perf_counter()
            self._source.read_into(chunk.offset_bytes, view)
            self.seconds["read"] += perf_counter() - started
            stream = self._own_stream()
            target = self._destination + chunk.destination_offset_bytes
            self._gpu.copy_to_device(target, slot.buffer.address, chunk.length_bytes, stream)
            slot.event.record(stream)
            slot.chunk = chunk
            if digest is not None:
                started = perf_counter()
                digest(view)
                self.seconds["digest"] += perf_counter() - started

    def finish(self) -> None:
        """Wait until every chunk is in device memory."""
        for _ in self._slots:
            self._turn = (self._turn + 1) % len(self._slots)
            self._wait(self._slots[self._turn])

    def close(self) -> None:
        """Give buffers and stream back, after the copies that still read them."""
        with contextlib.ExitStack() as stack:
            for slot in self._slots:
                stack.callback(slot.event.destroy)
                stack.callback(slot.buffer.free)
            if self._stream is not None:
                stack.callback(self._stream.destroy)
                stack.callback(self._stream.synchronize)
        self._slots, self._stream = [], None

    def _own_stream(self) -> CopyStream:
        if self._stream is None:
            self._stream = self._gpu.create_stream()
        return self._stream

    def _next_slot(self) -> _Slot:
        if len(self._slots) < self._num_buffers:
            started = perf_counter()
            buffer = self._gpu.allocate_host(self._buffer_bytes)
            self._slots.append(_Slot(buffer, self._gpu.create_event()))
            self.seconds["pin"] += perf_counter() - started
            self._turn = len(self._slots) - 1
        else:
            self._turn = (self._turn + 1) % self._num_buffers
        slot = self._slots[self._turn]
        self._wait(slot)
        return slot

    def _wait(self, slot: _Slot) -> None:
        chunk, slot.chunk = slot.chunk, None
        if chunk is not None:
            started = perf_counter()
            slot.event.synchronize()
            self.seconds["copy"] += perf_counter() - started
            self._landed(chunk)
