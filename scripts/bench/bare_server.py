"""The least that a streamed token costs in Python: a thread that sleeps and writes, and no server.

It writes the bytes of a server's frame to each socket each 20 ms. A child of ``http_cost.py``.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from zse.serve.http.framing import as_chunk
from zse.serve.http.streaming import ChunkWriter

STEP_SECONDS = 0.02
MAX_REQUEST_BYTES = 65536
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FRAME_HEAD = {
    "id": f"chatcmpl-{'0' * 32}",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "paced",
    "system_fingerprint": "paced",
}


def frame_of_a_token() -> bytes:
    """Return what is written to each socket."""
    return as_chunk(ChunkWriter(FRAME_HEAD, include_usage=False).chat_text(0, " word100"))


def write_for_ever(sockets: list[socket.socket]) -> None:
    """Write a frame to each socket each step; one that is closed, or full, is let go."""
    frame = frame_of_a_token()
    next_step = time.perf_counter()
    while True:
        now = time.perf_counter()
        next_step = max(next_step + STEP_SECONDS, now)
        time.sleep(next_step - now)
        for each in sockets[:]:
            try:
                each.send(frame)
            except OSError:
                sockets.remove(each)
                each.close()


def main() -> None:
    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        print(json.dumps({"message": "ready", "port": port}), file=sys.stderr, flush=True)
        threading.Thread(target=write_for_ever, args=(sockets,), daemon=True).start()
        while True:
            accepted, _ = listener.accept()
            accepted.recv(MAX_REQUEST_BYTES)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.send(HEAD)
            accepted.setblocking(False)
            sockets.append(accepted)


if __name__ == "__main__":
    main()
