"""Parts of a load one by one, and other ways to do them, so that one run tells what costs time.

``limit`` rows bring nothing to the device: they are what the host can copy at all. ``pin`` rows
are the price of pinned memory. ``busy`` rows load while another thread runs Python without pause.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from loader_peers import in_threads

from zse.stream import turns
from zse.stream.loader import LoaderOptions, LoadReport, load_region, start_load
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader import Bench

MIB = 1 << 20
_HUGE_PAGE_BYTES = 2 << 20


def sweep(bench: Bench) -> None:
    """Print every row."""
    variants(bench)
    sizes(bench)
    if not bench.options.host:
        pinning(bench)
    limits(bench)


def limits(bench: Bench) -> None:
    """Copy out of the page cache into ordinary memory that is used again and again."""
    path, span = bench.path, bench.span
    mapped = MappedSource(path)
    mapped.populate()
    for threads in (6, 8, 12, 16):
        for chunk_mib in (2, 4):
            label = f"{threads} threads, {chunk_mib} MiB"
            chunk = chunk_mib * MIB
            bench.time("limit", f"preadv, {label}", buffered(path, span, threads, chunk), 2)
            if chunk_mib == 4:
                run = from_source(mapped, span, threads, chunk)
                bench.time("limit", f"memmove, {label}", run, 2)
    mapped.close()


def sizes(bench: Bench) -> None:
    """Load with every number of threads and size of chunk that stays within 128 MiB."""
    for threads in (6, 8, 10, 12, 16):
        for chunk_mib in (1, 2, 4, 8):
            if threads * chunk_mib > 64:
                continue
            chosen = bench.loader(threads=threads, chunk_bytes=chunk_mib * MIB)
            name = f"zse, {threads} threads, {chunk_mib} MiB"
            bench.time("sweep", name, lambda chosen=chosen: bench.load(bench.path, chosen), 2)


def variants(bench: Bench) -> None:
    """Load in other ways, with the options in use."""
    chosen = bench.loader()

    def load(source: LocalSource, options: LoaderOptions = chosen, gpu: Any = None) -> LoadReport:
        try:
            device = gpu or bench.gpu
            return load_region(device, source, bench.header, bench.address, options)
        finally:
            source.close()

    def busy() -> LoadReport:
        source = LocalSource(bench.path)
        running = start_load(bench.gpu, source, bench.header, bench.address, chosen)
        while any(thread.name.startswith("zse-load") for thread in threading.enumerate()):
            sum(range(500))
        report = running.wait()
        source.close()
        return report

    bench.time("busy", "short turns", busy, 3)
    short, turns.TURN_SECONDS = turns.TURN_SECONDS, 0.005
    bench.time("busy", "usual turns", busy, 3)
    bench.time("variant", "usual turns", lambda: load(LocalSource(bench.path)), 3)
    turns.TURN_SECONDS = short
    bench.time("variant", "as it is", lambda: load(LocalSource(bench.path)), 3)
    bench.time("variant", "no look at the cache", lambda: load(never_direct(bench.path)), 3)
    bench.time("variant", "memmove from a mapping", lambda: load(MappedSource(bench.path)), 3)
    three = bench.loader(buffers_per_thread=3)
    bench.time("variant", "three buffers", lambda: load(LocalSource(bench.path), three), 3)
    if not bench.options.host:
        quick = QuickGpu(bench.gpu)
        bench.time(
            "variant", "GIL kept in calls", lambda: load(LocalSource(bench.path), gpu=quick), 3
        )


def pinning(bench: Bench) -> None:
    """Pin 64 MiB in several ways."""
    total = 64 * MIB
    bench.time("pin", "64 MiB, one block", lambda: pin_blocks(bench.gpu, 1, total), 3)
    for count in (8, 16, 32):
        run = lambda count=count: pin_blocks(bench.gpu, count, total // count)  # noqa: E731
        bench.time("pin", f"64 MiB, {count} threads", run, 3)
    bench.time("pin", "64 MiB, huge pages registered", lambda: register(bench.gpu, total), 3)


def never_direct(path: Path) -> LocalSource:
    return LocalSource(path, direct="never")


def buffered(
    path: Path, span: tuple[int, int], threads: int, chunk_bytes: int
) -> Callable[[], float]:
    def run() -> float:
        fd = os.open(path, os.O_RDONLY)

        def read(take: Callable[[], int | None], buffer: memoryview) -> None:
            while (start := take()) is not None:
                os.preadv(fd, [buffer[: min(chunk_bytes, sum(span) - start)]], start)

        try:
            return in_threads(read, span, threads, chunk_bytes)
        finally:
            os.close(fd)

    return run


def from_source(
    source: LocalSource, span: tuple[int, int], threads: int, chunk_bytes: int
) -> Callable[[], float]:
    def read(take: Callable[[], int | None], buffer: memoryview) -> None:
        while (start := take()) is not None:
            source.read_into(start, buffer[: min(chunk_bytes, sum(span) - start)])

    return lambda: in_threads(read, span, threads, chunk_bytes)


class MappedSource(LocalSource):
    """A file that is copied out of a mapping."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, direct="never")
        self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY)
        self._whole = (ctypes.c_char * len(self._map)).from_buffer(self._map)

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        target = (ctypes.c_char * len(view)).from_buffer(view)
        ctypes.memmove(target, ctypes.addressof(self._whole) + offset_bytes, len(view))

    def populate(self) -> None:
        self._map.madvise(22)  # MADV_POPULATE_READ

    def close(self) -> None:
        del self._whole
        self._map.close()
        super().close()


class QuickGpu:
    """A device whose short calls keep the GIL, so that they never wait to get it back."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        library = ctypes.PyDLL("libcuda.so.1")
        self._copy, self._record = library.cuMemcpyHtoDAsync_v2, library.cuEventRecord
        pointer = ctypes.c_void_p
        self._copy.argtypes = [ctypes.c_uint64, pointer, ctypes.c_size_t, pointer]
        self._record.argtypes = [pointer, pointer]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpu, name)

    def copy_to_device(self, target: int, source: int, length_bytes: int, stream: Any) -> None:
        if code := self._copy(target, source, length_bytes, stream.handle):
            raise OSError(code, "cuMemcpyHtoDAsync failed")

    def create_event(self) -> Any:
        return QuickEvent(self._gpu.create_event(), self._record)


class QuickEvent:
    def __init__(self, event: Any, record: Callable[[int, int], int]) -> None:
        self.synchronize, self.destroy = event.synchronize, event.destroy
        self._event, self._record = event, record

    def record(self, stream: Any) -> None:
        if code := self._record(self._event.handle, stream.handle):
            raise OSError(code, "cuEventRecord failed")


def pin_blocks(gpu: Any, count: int, length_bytes: int) -> float:
    """Pin one block in each of several threads; return the seconds until all are pinned."""
    blocks = []

    def run() -> None:
        gpu.make_current()
        blocks.append(gpu.allocate_host(length_bytes))

    threads = [threading.Thread(target=run) for _ in range(count)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    for block in blocks:
        block.free()
    return seconds


def register(gpu: Any, length_bytes: int) -> float:
    """Ask for huge pages, touch them, and let the driver pin them; return the seconds."""
    library = ctypes.CDLL("libcuda.so.1")
    gpu.make_current()
    started = time.perf_counter()
    area = mmap.mmap(-1, length_bytes + _HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    whole = (ctypes.c_char * len(area)).from_buffer(area)
    address = -(-ctypes.addressof(whole) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    for offset in range(0, length_bytes, mmap.PAGESIZE):
        area[offset] = 0
    touched = time.perf_counter()
    pointer = ctypes.c_void_p(address)
    code = library.cuMemHostRegister_v2(pointer, ctypes.c_size_t(length_bytes), 0)
    seconds = time.perf_counter() - started
    print(f"        touched in {(touched - started) * 1e3:.1f} ms, driver's code {code}")
    library.cuMemHostUnregister(pointer)
    del whole
    area.close()
    return seconds
