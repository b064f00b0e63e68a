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
from functools import partial
from typing import TYPE_CHECKING, Any

from loader_devices import BlockingGpu, RegisteredGpu
from loader_peers import in_threads, plain_get

from zse.stream import turns
from zse.stream.loader import RegionLoad, plan_load
from zse.stream.opening import open_source
from zse.stream.options import LoaderOptions, LoadReport
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader import Bench

    from zse.stream.source import ByteSource

MIB = 1 << 20
SIZES = (
    *((8, 4, 2), (8, 4, 1), (10, 4, 1), (12, 4, 1), (16, 4, 1)),
    *((8, 6, 2), (10, 6, 2), (12, 5, 2), (8, 8, 2), (12, 8, 1), (16, 8, 1)),
)
"""Threads, MiB of a chunk, buffers of a thread."""


def sweep(bench: Bench, parts: list[str]) -> None:
    """Print the rows of these parts, or of all."""
    for name in parts or PARTS:
        PARTS[name](bench)


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
    """Load with numbers of threads, sizes of a chunk and buffers that stay within 128 MiB."""
    for name, gpu in devices(bench).items():
        for threads, chunk_mib, buffers in SIZES:
            if name == "blocking" and buffers > 1:
                continue
            chosen = LoaderOptions(
                threads=threads, chunk_bytes=chunk_mib * MIB, buffers_per_thread=buffers
            )
            label = f"{name}, {threads} x {buffers} x {chunk_mib} MiB"
            bench.time("sizes", label, partial(load, bench, gpu, chosen), 3)


def variants(bench: Bench) -> None:
    """Load in other ways, with the options in use."""
    usual, gpu = bench.loader(), bench.gpu
    bench.time("variant", "as it is", partial(load, bench, gpu, usual), 3)
    mapped = partial(load, bench, gpu, usual, MappedSource)
    bench.time("variant", "memmove from a mapping", mapped, 3)
    uncached = partial(load, bench, gpu, usual, partial(LocalSource, direct="never"))
    bench.time("variant", "no look at the cache", uncached, 3)


def busy(bench: Bench) -> None:
    """Load while the main thread runs Python without pause."""
    usual = turns.TURN_SECONDS

    def run() -> LoadReport:
        source = LocalSource(bench.path)
        plan = plan_load(source, bench.placement, bench.loader())
        running = RegionLoad(bench.gpu, source, plan, bench.address, bench.loader())
        while any(thread.name.startswith("zse-load") for thread in threading.enumerate()):
            sum(range(500))
        report = running.wait()
        source.close()
        return report

    for milliseconds in (0.05, 0.2, 1.0):
        turns.TURN_SECONDS = milliseconds / 1e3
        bench.time("busy", f"turns of {milliseconds} ms", run, 2)
    turns.TURN_SECONDS = usual


def network(bench: Bench) -> None:
    """Load an object from a server on this machine, with more and fewer connections."""
    with bench.object_url() as (url, port):
        for name, gpu in devices(bench).items():
            for threads, chunk_mib in ((8, 8), (12, 8), (16, 8), (16, 4)):
                chosen = LoaderOptions(
                    threads=threads, chunk_bytes=chunk_mib * MIB, buffers_per_thread=1
                )
                run = partial(load, bench, gpu, chosen, open_source, url)
                bench.time("network", f"{name}, {threads} x 1 x {chunk_mib} MiB", run, 3)
        for threads in (8, 16):
            get = partial(plain_get, port, bench.span, threads, 8 * MIB)
            bench.time("network", f"bare parallel GET, {threads} threads", get, 3)


def calls(bench: Bench) -> None:
    """Print what single calls of the driver take, with nothing else going on."""
    if bench.options.host:
        return
    gpu = bench.gpu
    block, streams = gpu.allocate_host(4096), []
    stream = gpu.create_stream()
    steps: dict[str, Callable[[], Any]] = {
        "create_stream": lambda: streams.append(gpu.create_stream()),
        "copy_to_device": lambda: gpu.copy_to_device(bench.address, block.address, 4096, stream),
        "stream.synchronize": stream.synchronize,
    }
    for name, step in steps.items():
        times = []
        for _ in range(16):
            started = time.perf_counter()
            step()
            times.append((time.perf_counter() - started) * 1e6)
        print(f"calls   {name:20} median {sorted(times)[8]:.1f} us, longest {max(times):.1f} us")
    for resource in (*streams, stream):
        resource.destroy()
    block.free()


def pinning(bench: Bench) -> None:
    """Pin 64 MiB in several ways."""
    for name, gpu in devices(bench).items():
        for count in (1, 8, 16):
            run = partial(pin_blocks, gpu, count, 64 * MIB // count)
            bench.time("pin", f"{name}, 64 MiB in {count} threads", run, 3)


PARTS: dict[str, Callable[[Bench], None]] = {
    "variants": variants,
    "sizes": sizes,
    "busy": busy,
    "network": network,
    "calls": calls,
    "pinning": pinning,
    "limits": limits,
}


def devices(bench: Bench) -> dict[str, Any]:
    """Return the device, and others that differ from it in one way."""
    if bench.options.host:
        return {"plain": bench.gpu}
    return {
        "plain": bench.gpu,
        "registered": RegisteredGpu(bench.gpu),
        "blocking": BlockingGpu(bench.gpu),
    }


def load(
    bench: Bench,
    gpu: Any,
    options: LoaderOptions,
    opening: Callable[[Any], ByteSource] = LocalSource,
    url: str = "",
) -> LoadReport:
    source = opening(url or bench.path)
    try:
        plan = plan_load(source, bench.placement, options)
        return RegionLoad(gpu, source, plan, bench.address, options).wait()
    finally:
        source.close()


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
