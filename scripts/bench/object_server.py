"""A small server of one file over HTTP ranges, as S3 answers them, fast enough to measure clients.

Bytes go from the page cache to the socket by sendfile. Run as a child process; it prints its port.

    python scripts/bench/object_server.py FILE
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RANGE = re.compile(rb"range: *bytes=(\d+)-(\d+)", re.IGNORECASE)


@contextmanager
def serving(path: Path) -> Iterator[int]:
    """Serve a file at every path of a loopback port while the block runs; yield the port."""
    with Popen([sys.executable, "-I", "-S", __file__, str(path)], stdout=PIPE) as child:
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.terminate()


def serve(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer_all, args=(connection, file, size), daemon=True).start()


def answer_all(connection: socket.socket, file: int, size: int) -> None:
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
                first += os.sendfile(connection.fileno(), file, first, last - first + 1)


if __name__ == "__main__":
    serve(sys.argv[1])
