"""A small server of one file over HTTP ranges, as S3 answers them, fast enough to measure clients.

Bytes go from the page cache to the socket by sendfile. Run as a child process; it prints its port.
With a number of gigabits a second all connections together get no more: a line of that width.

    python scripts/bench/object_server.py FILE [GIGABITS]
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECE_BYTES = 1 << 20
_RANGE = re.compile(rb"range: *bytes=(\d+)-(\d+)", re.IGNORECASE)


@contextmanager
def serving(path: Path, gigabits: float = 0.0) -> Iterator[int]:
    """Serve a file at every path of a loopback port while the block runs; yield the port."""
    command = [sys.executable, "-I", "-S", __file__, str(path), str(gigabits)]
    with Popen(command, stdout=PIPE) as child:
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.terminate()


class Line:
    """What all connections share: so many bytes a second, one piece behind the other."""

    def __init__(self, gigabits: float) -> None:
        self._bytes_per_second = gigabits * 1e9 / 8
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, num_bytes: int) -> None:
        """Wait until so many bytes would have passed."""
        if not self._bytes_per_second:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic())
            self._free_at += num_bytes / self._bytes_per_second
            left = self._free_at - time.monotonic()
        if left > 0:
            time.sleep(left)


def serve(path: str, gigabits: float) -> None:
    line = Line(gigabits)
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(
                target=answer_all, args=(connection, file, size, line), daemon=True
            ).start()


def answer_all(connection: socket.socket, file: int, size: int, line: Line) -> None:
    with connection, suppress(OSError):
        request = b""
        while True:
            while b"\r\n\r\n" not in request:
                received = connection.recv(65536)
                if not received:
                    return
                request += received
            head, _, request = request.partition(b"\r\n\r\n")
            found = _RANGE.search(head)
            first, last = (int(found[1]), int(found[2])) if found else (0, size - 1)
            last = min(last, size - 1)
            answer = (
                f'HTTP/1.1 {206 if found else 200} OK\r\nETag: "bench"\r\n'
                f"Content-Length: {last - first + 1}\r\n"
                f"Content-Range: bytes {first}-{last}/{size}\r\n\r\n"
            )
            connection.sendall(answer.encode())
            while first <= last:
                count = min(PIECE_BYTES, last - first + 1)
                line.wait(count)
                end = first + count
                while first < end:
                    first += os.sendfile(connection.fileno(), file, first, end - first)


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
