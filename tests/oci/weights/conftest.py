"""A registry in memory over real connections, which answers ranges as real ones do."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from oci_builders import FakeRegistry

_CLOSED = re.compile(r"bytes=(\d+)-(\d+)")


class ServedRegistry:
    """``fake`` holds what was pushed; ``reference`` names a repository of it."""

    def __init__(self) -> None:
        self.fake = FakeRegistry()
        self.ranges: list[tuple[str, int, int]] = []
        """Digest, first and last byte of each range that was asked for."""
        self.corrupt = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                length = int(self.headers.get("content-length") or 0)
                if self.headers.get("transfer-encoding") == "chunked":
                    body = self.read_chunks()
                else:
                    body = self.rfile.read(length)
                request = httpx.Request(
                    self.command, f"http://{outer.host}{self.path}", headers=dict(self.headers),
                    content=body,
                )  # fmt: skip
                with outer.lock:
                    found = outer.fake._answer(request)
                found.read()
                content, status, extra = found.content, found.status_code, {}
                span = _CLOSED.fullmatch(self.headers.get("range", ""))
                if span and status == 200 and "/blobs/" in self.path:
                    first, last = int(span[1]), min(int(span[2]), len(content) - 1)
                    outer.ranges.append((self.path.rpartition("/")[2], first, last))
                    extra["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                    content, status = content[first : last + 1], 206
                    if outer.corrupt:
                        content = bytes([content[0] ^ 1]) + content[1:]
                self.send_response(status)
                kept = {k: v for k, v in found.headers.items() if k.lower() != "content-length"}
                for name, value in {**kept, **extra, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def read_chunks(self):
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)

        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"oci://{self.host}/team/model:1"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def served():
    found = ServedRegistry()
    yield found
    found.close()
