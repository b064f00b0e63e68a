"""A load by native threads: Python plans it, waits for it and turns its failures into errors.

Python threads need the GIL again after every read and every copy, for which they wait milliseconds
while a start imports modules. Native threads never take it, and leave it to the rest of the start.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING

from zse.device.loader import structs
from zse.device.loader.library import driver_of
from zse.device.loader.structs import DRIVER_FUNCTIONS, Failure
from zse.errors import LoadCancelledError, StoreError
from zse.stream.options import LoadReport
from zse.stream.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from typing import NoReturn

    from zse.device.loader.library import Areas, CopyFunctions, LoaderLibrary
    from zse.stream.ahead import AheadSource
    from zse.stream.options import LoaderOptions
    from zse.stream.plan import ReadPlan
    from zse.stream.source import LocalSource

_WAIT_NANOSECONDS = 100_000_000
"""Longest wait in one call of the library: between calls Python can handle signals."""


class NativeLoad:
    """A running load with the interface of ``zse.stream.loader.RegionLoad``.

    Args:
        source: What is read: ``file``, or an ``AheadSource`` of it with prefetched chunks.
        file: The file itself.
        areas: Memory for the buffers; closed with the load.
    """

    def __init__(
        self,
        library: LoaderLibrary,
        functions: CopyFunctions,
        source: LocalSource | AheadSource,
        file: LocalSource,
        plan: ReadPlan,
        destination_address: int,
        options: LoaderOptions,
        *,
        areas: Areas | None = None,
    ) -> None:
        self._library = library
        self._areas = areas
        self._functions = functions
        self._source = source
        self._file = file
        self._plan = plan
        self._num_threads = min(options.threads, len(plan.chunks))
        self._buffer_bytes = max(plan.largest_chunk_bytes, 1)
        if functions.kept:  # buffers of one size serve any load
            self._buffer_bytes = max(self._buffer_bytes, CHUNK_BYTES)
        self._ahead = source.hand_over() if source is not file else {}  # type: ignore[union-attr]
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        """Held by a thread that waits for a group: the native load must not be freed meanwhile."""
        self._ending = threading.Lock()
        """Held in ``wait``, which several threads may call."""
        self._landed_bytes = 0
        self._outcome: LoadReport | BaseException | None = None
        """Result of ``wait``. Once it is set, the native load has been freed."""
        self._started = time.monotonic_ns()
        self._load: int | None = self._start(destination_address, options.buffers_per_thread)
        self._counters = library.counters(self._load).contents

    def _start(self, destination_address: int, buffers_per_thread: int) -> int:
        chunks = self._packed_chunks()
        order = structs.Order(
            driver=ctypes.pointer(driver_of(self._functions)),
            file=ctypes.pointer(self._file.as_struct()),
            chunks=ctypes.addressof(chunks),
            num_chunks=len(self._plan.chunks),
            num_groups=len(self._plan.groups),
            block=destination_address,
            buffer_bytes=self._buffer_bytes,
            num_threads=self._num_threads,
            buffers_per_thread=buffers_per_thread,
            kept=self._functions.kept,
            areas=self._areas.address if self._areas is not None else None,
        )
        started = ctypes.c_int32()
        load: int | None = self._library.start(ctypes.byref(order), ctypes.byref(started))
        if load is None:
            self._drop_ahead()
            self._drop_areas()
            raise StoreError(
                f"{max(started.value, 0)} of {self._num_threads} threads that load "
                f"{self._source.name} could be started",
                hint="Allow this process more threads (ulimit -u, the container's pids limit) and "
                "memory.",
            )
        return load

    def _packed_chunks(self) -> ctypes.Array[ctypes.c_char]:
        size, pack = structs.CHUNK.size, structs.CHUNK.pack_into
        chunks = self._plan.chunks
        packed = ctypes.create_string_buffer(size * max(len(chunks), 1))
        for index, chunk in enumerate(chunks):
            area = self._ahead.get((chunk.offset_bytes, chunk.length_bytes))
            pack(
                packed,
                size * index,
                chunk.offset_bytes,
                chunk.length_bytes,
                chunk.destination_offset_bytes,
                chunk.stride_bytes,
                chunk.num_pieces,
                chunk.group,
                area.address if area is not None and chunk.num_pieces == 1 else 0,
            )
        return packed

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes that are in device memory, and the bytes of the whole load."""
        with self._lock:
            if self._load is not None:
                self._landed_bytes = self._counters.landed_bytes
            return self._landed_bytes, self._plan.total_bytes

    def cancel(self) -> None:
        """Stop soon; ``wait`` then raises ``LoadCancelledError``."""
        with self._lock:
            if self._load is not None:
                self._library.cancel(self._load)

    def wait(self) -> LoadReport:
        """Wait until everything is in device memory and every thread has ended.

        Later calls return or raise the same.

        Raises:
            FormatError, SourceChangedError, StoreError: The source changed or failed.
            DeviceError: The device failed.
            LoadCancelledError: ``cancel`` was called.
        """
        with self._ending:
            if self._outcome is None:
                try:
                    self._outcome = self._waited()
                except Exception as error:  # noqa: BLE001 - raised below, as often as it is asked
                    self._outcome = error
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def wait_for_group(self, group: int) -> None:
        """Wait until a group, counted as in the plan, is in device memory.

        Any thread may call this, also beside ``wait``; raises as ``wait`` does.
        """
        while (found := self._look_for(group)) is not True:
            if found is None:
                self.wait()  # which says what went wrong, if anything did
                return

    def _look_for(self, group: int) -> bool | None:
        """Wait for a group, or until another one is complete or some time has passed.

        Returns:
            Whether the group is there; None if the load has ended or failed.
        """
        with self._looking:
            if self._load is None or self._counters.failure:
                return None
            seen = self._counters.num_complete
            if not self._library.left(self._load, group):
                return True
            self._wait_some(seen)
            return False

    def _waited(self) -> LoadReport:
        try:
            while not self._wait_some(len(self._plan.groups)):
                pass
        except BaseException:
            self.cancel()
            self._end()  # the caller frees the block that the threads copy to
            self._outcome = LoadCancelledError(f"loading {self._source.name} was stopped")
            raise
        ended = self._end()
        if ended.failure:
            self._raise(ended)
        self._source.check_unchanged()
        return self._report(ended)

    def _wait_some(self, seen: int) -> bool:
        """Wait a while, or until more than ``seen`` groups are there; return whether it ended."""
        return bool(self._library.wait(self._load, seen, _WAIT_NANOSECONDS))

    def _end(self) -> structs.Counters:
        """Wait for the threads, free the native load and return its final counters.

        After a successful load the buffers are freed in the background, if the device can wait for
        that before it is closed.
        """
        while not self._wait_some(len(self._plan.groups)):
            pass
        stays_for = None if self._counters.failure else self._functions.stays_for
        if stays_for is None:
            self._library.join(self._load)
        with self._looking, self._lock:
            ended = structs.Counters.from_buffer_copy(self._counters)
            self._landed_bytes = ended.landed_bytes
            load, self._load = self._load, None
            del self._counters  # the memory is the library's
        if stays_for is None or not self._give_back_beside(load, stays_for):
            self._give_back(load)
        self._drop_ahead()
        self._file.count(direct_bytes=ended.direct_bytes, buffered_bytes=ended.buffered_bytes)
        return ended

    def _give_back_beside(self, load: int | None, stays_for: Callable[[Thread], None]) -> bool:
        """Give the load back in a thread of its own; return whether one could be started."""
        giving = threading.Thread(target=self._give_back, args=(load,), name="zse-load-end")
        try:
            giving.start()
        except RuntimeError:  # the load went well: that no thread is left is no reason to fail
            return False
        stays_for(giving)
        return True

    def _give_back(self, load: int | None) -> None:
        self._library.end(load)
        self._drop_areas()

    def _drop_areas(self) -> None:
        areas, self._areas = self._areas, None
        if areas is not None:
            areas.close()

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, {}
        for area in ahead.values():
            area.close()

    def _report(self, ended: structs.Counters) -> LoadReport:
        count = max(self._num_threads, 1)
        spent = {
            "copy": ended.copy_nanoseconds,
            "pin": ended.pin_nanoseconds,
            "read": ended.read_nanoseconds,
        }
        return LoadReport(
            num_bytes=self._plan.total_bytes,
            seconds=max(0, ended.last_landed_nanoseconds - self._started) / 1e9,
            source=self._source.kind,
            threads=self._num_threads,
            phase_seconds={phase: time_ns / count / 1e9 for phase, time_ns in spent.items()},
        )

    def _raise(self, ended: structs.Counters) -> NoReturn:
        """Raise what stopped the load."""
        failure = Failure(ended.failure)
        if failure is Failure.CANCELLED:
            raise LoadCancelledError(f"loading {self._source.name} was stopped")
        if failure is Failure.DRIVER_FAILED:
            name = DRIVER_FUNCTIONS[ended.detail]
            self._functions.fail(name, ended.code, self._buffer_bytes)
        if failure is Failure.READ_FAILED:
            raise self._file.read_error(ended.detail, ended.code)
        if failure is Failure.FILE_SHRANK:
            raise self._file.shrank()
        raise StoreError(
            f"there is no memory to load {self._source.name} with",
            hint="Raise the memory limit of the container.",
        )
