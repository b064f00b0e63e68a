"""A device whose memory is ordinary memory and whose copies run as late as they may.

A copy happens only when something waits for it, so a buffer that is filled again too early, or
freed too early, gives wrong bytes or an assertion. The shape is that of ``zse.device.cuda.gpu.Gpu``.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import TYPE_CHECKING

from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable


class HostGpu:
    """Use ``memory`` for a block and read it back with ``bytes_of``."""

    def __init__(self) -> None:
        self.live: set[object] = set()
        """Streams, events and pinned buffers that were not given back."""
        self.pinned_bytes = self.peak_pinned_bytes = 0
        self.num_copies = 0
        self.on_copy: Callable[[int], None] = lambda _count: None
        """Called with the number of copies so far before each one; may raise."""
        self.lock = threading.RLock()
        self._threads: set[int] = set()
        self._blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}

    # --- what the tests use ---------------------------------------------------------------------

    def memory(self, length_bytes: int) -> int:
        """Return the address of a new block of device memory, filled with 0xEE."""
        block = ctypes.create_string_buffer(b"\xee" * length_bytes, length_bytes)
        self._blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def bytes_of(self, address: int) -> bytes:
        return self._blocks[address].raw

    # --- what the loader uses -------------------------------------------------------------------

    def make_current(self) -> None:
        self._threads.add(threading.get_ident())

    def allocate_host(self, length_bytes: int) -> HostBuffer:
        self.check_thread()
        return HostBuffer(self, length_bytes)

    def copy_functions(self) -> None:
        """Return nothing: all that happens here is Python."""

    def create_stream(self) -> LateStream:
        self.check_thread()
        return LateStream(self)

    def create_event(self, timing: bool = False) -> LateEvent:
        self.check_thread()
        return LateEvent(self)

    def copy_to_device(
        self, destination: int, source: int, length_bytes: int, stream: LateStream
    ) -> None:
        self.check_thread()
        with self.lock:
            self.num_copies += 1
            self.on_copy(self.num_copies)
            stream.copies.append((destination, source, length_bytes))

    def check_thread(self) -> None:
        assert threading.get_ident() in self._threads, "make_current was not called in this thread"

    def pending_from(self, start: int, end: int) -> bool:
        """Whether a copy that has not run reads from a range of addresses."""
        streams = [item for item in self.live if isinstance(item, LateStream)]
        return any(start <= source < end for stream in streams for _, source, _ in stream.copies)


class HostBuffer:
    """Page-aligned memory that is overwritten when it is freed."""

    def __init__(self, gpu: HostGpu, length_bytes: int) -> None:
        self._gpu = gpu
        self._map = mmap.mmap(-1, length_bytes)
        self.view = memoryview(self._map)
        self._array = (ctypes.c_char * length_bytes).from_buffer(self._map)
        self.address = ctypes.addressof(self._array)
        self.length_bytes = length_bytes
        with gpu.lock:
            gpu.live.add(self)
            gpu.pinned_bytes += length_bytes
            gpu.peak_pinned_bytes = max(gpu.peak_pinned_bytes, gpu.pinned_bytes)

    def free(self) -> None:
        with self._gpu.lock:
            end = self.address + self.length_bytes
            assert not self._gpu.pending_from(self.address, end), "freed under a copy"
            self._gpu.live.remove(self)
            self._gpu.pinned_bytes -= self.length_bytes
        ctypes.memset(self.address, 0xDD, self.length_bytes)
        self.view.release()


class LateStream:
    def __init__(self, gpu: HostGpu) -> None:
        self._gpu = gpu
        self.copies: list[tuple[int, int, int]] = []
        self.done = 0
        with gpu.lock:
            gpu.live.add(self)

    def run_until(self, count: int) -> None:
        """Run copies until ``count`` of this stream have run."""
        with self._gpu.lock:
            while self.done < count:
                ctypes.memmove(*self.copies.pop(0))
                self.done += 1

    def synchronize(self) -> None:
        self._gpu.check_thread()
        self.run_until(self.done + len(self.copies))

    def destroy(self) -> None:
        assert not self.copies, "destroyed with copies that did not run"
        with self._gpu.lock:
            self._gpu.live.remove(self)


class LateEvent:
    def __init__(self, gpu: HostGpu) -> None:
        self._gpu = gpu
        self._stream: LateStream | None = None
        self._count = 0
        with gpu.lock:
            gpu.live.add(self)

    def record(self, stream: LateStream) -> None:
        self._stream, self._count = stream, stream.done + len(stream.copies)

    def synchronize(self) -> None:
        self._gpu.check_thread()
        assert self._stream is not None, "waited for an event that was never recorded"
        self._stream.run_until(self._count)

    def destroy(self) -> None:
        with self._gpu.lock:
            self._gpu.live.remove(self)


class DeviceLostError(DeviceError):
    """What a test raises from ``on_copy``."""
