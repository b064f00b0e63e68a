"""A proxy before a real registry that misbehaves on request, over real connections."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Faults:
    """What is to go wrong, and what was seen."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers given instead of passing a request on."""
    cut_uploads_after: list[int] = field(default_factory=list)
    """Uploads break off after so many bytes of their body."""
    cut_downloads_after: list[int] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    upload_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, items: list):
        with self.lock:
            return items.pop(0) if items else None

    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    upstream: str

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def pass_on(self) -> None:
        with self.faults.lock:
            self.faults.seen.append((self.command, self.path))
        length = int(self.headers.get("content-length") or 0)
        answer = self.faults.take(self.faults.answers)
        if answer is not None:
            self.rfile.read(length)
            self.send_response(answer[0])
            for name, value in {**answer[1], "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        limit = None
        if self.command in {"PATCH", "PUT"} and "/blobs/uploads/" in self.path and length:
            limit = self.faults.take(self.faults.cut_uploads_after)
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            if self.send_up(upstream, length, limit):
                self.send_down(upstream.getresponse())
        finally:
            upstream.close()

    def send_up(self, upstream: http.client.HTTPConnection, length: int, limit: int | None) -> bool:
        """Send the request on; tell whether it was sent whole."""
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders()
        left = length if limit is None else min(limit, length)
        while left:
            data = self.rfile.read(min(left, 1 << 20))
            if not data:
                return False
            left -= len(data)
            if "/blobs/uploads/" in self.path:
                self.faults.upload_bytes += len(data)
            upstream.send(data)
        if limit is not None:
            self.cut()
            return False
        return True

    def send_down(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        limit = None
        if self.command == "GET" and "/blobs/sha256" in self.path:
            limit = self.faults.take(self.faults.cut_downloads_after)
        while data := answer.read(1 << 16 if limit is None else min(1 << 16, limit)):
            self.wfile.write(data)
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    self.cut()
                    return

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


for method in ("GET", "HEAD", "PUT", "POST", "PATCH"):
    setattr(Handler, f"do_{method}", Handler.pass_on)


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # cut connections are the point


@contextlib.contextmanager
def faulty_registry(upstream: str) -> Iterator[tuple[str, Faults]]:
    """Run a proxy before the registry ``upstream``; yield its address and its faults."""
    faults = Faults()
    handler = type("BoundHandler", (Handler,), {"faults": faults, "upstream": upstream})
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", faults
        finally:
            server.shutdown()
            thread.join()
