"""One thread's part of a load: it copies chunks through pinned buffers, each with a stream."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.device.gpu import Gpu, HostBlock, Stream
    from zse.stream.plan import Chunk
    from zse.stream.source import ByteSource


class _Slot:
    """A pinned buffer, and the chunk that is being copied from it.

    Since each buffer has its own stream, no event is needed to know when the buffer is free.
    """

    def __init__(self, buffer: HostBlock, stream: Stream) -> None:
        self.buffer = buffer
        self.stream = stream
        self.chunk: Chunk | None = None


class ChunkCopier:
    """Reads chunks into pinned memory and copies them to the device asynchronously.

    Buffers are pinned when they are first needed: pinning costs about half a second a GB, so the
    first read starts after one buffer and a small model never pays for the whole ring.

    Little Python runs for each chunk: only one thread holds the GIL, and every call that releases
    it may have to wait to get it back.

    Args:
        buffer_bytes: Size of a buffer; no chunk is larger.
        num_buffers: Buffers used in turn.
        landed: Called with each chunk that is in device memory.
    """

    def __init__(
        self,
        gpu: Gpu,
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
        self._turn = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def copy(self, chunk: Chunk, digest: Callable[[memoryview], object] | None = None) -> None:
        """Read a chunk and start its copy; meanwhile ``digest`` is called with its bytes."""
        slot = self._next_slot()
        with slot.buffer.view[: chunk.length_bytes] as view:
            started = perf_counter()
            self._read(chunk, view)
            self.seconds["read"] += perf_counter() - started
            target = self._destination + chunk.destination_offset_bytes
            self._gpu.copy_to_device(target, slot.buffer.address, chunk.length_bytes, slot.stream)
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
        """Free buffers and streams, after the copies that still use them."""
        with contextlib.ExitStack() as stack:
            for slot in self._slots:
                stack.callback(slot.buffer.free)
                stack.callback(slot.stream.destroy)
                stack.callback(slot.stream.synchronize)
        self._slots = []

    def _read(self, chunk: Chunk, view: memoryview) -> None:
        if chunk.num_pieces == 1:
            self._source.read_into(chunk.offset_bytes, view)
            return
        length = chunk.length_bytes // chunk.num_pieces
        for index in range(chunk.num_pieces):
            with view[index * length : (index + 1) * length] as piece:
                self._source.read_into(chunk.offset_bytes + index * chunk.stride_bytes, piece)

    def _next_slot(self) -> _Slot:
        if len(self._slots) < self._num_buffers:
            started = perf_counter()
            stream = self._gpu.create_stream()
            try:
                buffer = self._gpu.allocate_host(self._buffer_bytes)
            except BaseException:
                stream.destroy()
                raise
            self._slots.append(_Slot(buffer, stream))
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
            slot.stream.synchronize()
            self.seconds["copy"] += perf_counter() - started
            self._landed(chunk)
