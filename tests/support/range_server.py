"""A loopback server of one object, in ranges, that misbehaves when told to."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RangeServer(ThreadingHTTPServer):
    """``fault`` sees every request first and returns True when it has answered."""

    daemon_threads = True

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.path, self.data, self.etag = path, data, '"first"'
        self.num_connections = 0
        self.requests: list[str] = []
        """The Range header of each GET."""
        self.headers_seen: list[dict[str, str]] = []
        self.fault: Callable[[Handler], bool] = lambda _request: False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.num_connections += 1
        super().process_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        """Keep quiet about clients that hang up."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(self.headers.get("Range", ""))
        self.server.headers_seen.append({k.lower(): v for k, v in self.headers.items()})
        if self.server.fault(self):
            return
        size = len(self.server.data)
        first, last = self.wanted()
        if self.path != self.server.path:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", self.server.etag) != self.server.etag:
            self.answer(412)
        elif first >= size:
            self.answer(416)
        else:
            body = self.server.data[first : last + 1]
            self.answer(206, body, {"Content-Range": f"bytes {first}-{last}/{size}"})

    def do_HEAD(self) -> None:
        is_object, is_bucket = self.path == self.server.path, self.path.count("/") == 1
        length = str(len(self.server.data)) if is_object else "0"
        self.answer(200 if is_object or is_bucket else 404, headers={"Content-Length": length})

    def wanted(self) -> tuple[int, int]:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        return first, min(last, len(self.server.data) - 1)

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        common = {"Content-Length": str(len(body)), "ETag": self.server.etag}
        for name, value in {**common, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def answer_cut(self, count: int) -> None:
        """Promise the range and hang up after ``count`` bytes of it."""
        first, last = self.wanted()
        self.send_response(206)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.server.data)}")
        self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(self.server.data[first : first + min(count, last - first + 1)])
        self.close_connection = True


@contextmanager
def serving(path: str, data: bytes) -> Iterator[RangeServer]:
    server = RangeServer(path, data)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
