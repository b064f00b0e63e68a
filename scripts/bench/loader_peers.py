"""The ways to read that the loader is measured against, each in its plainest form."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINK_BYTES = 256 << 20


def pageable_copy(gpu: Any, path: Path, span: tuple[int, int], destination: int) -> float:
    """Map the file and hand the mapping to the driver; return the seconds."""
    offset, length = span
    stream = gpu.create_stream()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
        pointer = (ctypes.c_char * length).from_buffer(mapping, offset)
        started = time.perf_counter()
        gpu.copy_to_device(destination, ctypes.addressof(pointer), length, stream)
        stream.synchronize()
        seconds = time.perf_counter() - started
        del pointer
    stream.destroy()
    return seconds


def link_copy(gpu: Any, destination: int, length: int) -> tuple[float, int]:
    """Copy from one pinned block; return the seconds of the better of two, and the bytes."""
    length = min(length, LINK_BYTES)
    block, stream = gpu.allocate_host(length), gpu.create_stream()
    times = []
    for _ in range(3):
        started = time.perf_counter()
        gpu.copy_to_device(destination, block.address, length, stream)
        stream.synchronize()
        times.append(time.perf_counter() - started)
    block.free()
    stream.destroy()
    return min(times), length


def direct_read(path: Path, span: tuple[int, int], threads: int, chunk_bytes: int) -> float:
    """Read the region past the page cache into one buffer a thread; return the seconds."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(take: Callable[[], int | None], buffer: memoryview) -> None:
        while (start := take()) is not None:
            done, wanted = 0, min(chunk_bytes, span[0] + span[1] - start)
            while done < wanted:
                done += os.preadv(fd, [buffer[done:wanted]], start + done)

    try:
        return in_threads(read, span, threads, chunk_bytes)
    finally:
        os.close(fd)


def plain_get(port: int, span: tuple[int, int], threads: int, chunk_bytes: int) -> float:
    """Get the region in ranges into one buffer a thread, by bare sockets; return the seconds."""

    def read(take: Callable[[], int | None], buffer: memoryview) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while (start := take()) is not None:
                wanted = min(chunk_bytes, span[0] + span[1] - start)
                ask = f"GET /x HTTP/1.1\r\nRange: bytes={start}-{start + wanted - 1}\r\n\r\n"
                connection.sendall(ask.encode())
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(4096)
                done = len(head.partition(b"\r\n\r\n")[2])
                while done < wanted:
                    done += connection.recv_into(buffer[done:wanted])

    return in_threads(read, span, threads, chunk_bytes)


def in_threads(
    read: Callable[[Callable[[], int | None], memoryview], None],
    span: tuple[int, int],
    threads: int,
    chunk_bytes: int,
) -> float:
    """Run ``read(take, buffer)`` in threads; ``take`` gives the next offset or None."""
    starts = iter(range(span[0], span[0] + span[1], chunk_bytes))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def take() -> int | None:
        with lock:
            return next(starts, None)

    def run(area: mmap.mmap) -> None:
        try:
            read(take, memoryview(area))
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    areas = [mmap.mmap(-1, chunk_bytes) for _ in range(threads)]
    for area in areas:  # the first touch of a page is not part of a read
        area.write(bytes(chunk_bytes))
    workers = [threading.Thread(target=run, args=(area,)) for area in areas]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    if failures:
        raise failures[0]
    return seconds
