"""A model hub on loopback: resolve with its headers and redirects, listings, and the server that
large files are redirected to, which like the real one wants no token."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
LARGE = bytes(range(256)) * 5000
FILES = {
    "config.json": b'{"a": 1}',
    "models/model.zse": LARGE,
    "models/näme 1.txt": b"text",
}


@dataclass
class FakeHub:
    endpoint: str = ""
    elsewhere: str = ""
    requests: list[str] = field(default_factory=list)
    """``METHOD path`` at the hub, ``CDN path range`` elsewhere."""
    leaked_tokens: list[str] = field(default_factory=list)
    signature: int = 1
    """What a redirect's address carries; the other server accepts only the newest."""
    damaged: bool = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def answer_range(self, data: bytes, **headers: str) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, data, **headers)
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        self.answer(
            206,
            data[first : last + 1],
            Content_Range=f"bytes {first}-{last}/{len(data)}",
            **headers,
        )


class _Elsewhere(_Handler):
    def do_GET(self) -> None:
        self.hub.requests.append(f"CDN {self.path} {self.headers.get('Range', '')}")
        if "Authorization" in self.headers:
            self.hub.leaked_tokens.append(self.headers["Authorization"])
        if not self.path.endswith(f"signature={self.hub.signature}"):
            self.answer(403)
            return
        self.answer_range(LARGE[::-1] if self.hub.damaged else LARGE, ETag='"of-the-cdn"')


class _Hub(_Handler):
    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        path = unquote(urlsplit(self.path).path)
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        repository = "/".join(
            path.split("/")[3:5] if path.startswith("/api/") else path.split("/")[1:3]
        )
        if repository == "old/name":
            self.answer(307, Location=self.path.replace("old/name", "owner/name"))
        elif repository == "owner/gated" and not is_known:
            self.answer(403, X_Error_Code="GatedRepo")
        elif repository not in ("owner/name", "owner/gated"):
            self.answer(401, X_Error_Code="RepoNotFound")
        elif path.startswith("/api/"):
            self.list_files(path)
        else:
            self.resolve(path, *path.split("/resolve/", 1)[1].partition("/")[::2])

    def resolve(self, path: str, revision: str, name: str) -> None:
        if revision not in ("main", "v1", COMMIT):
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif name not in FILES:
            self.answer(404, X_Error_Code="EntryNotFound")
        elif FILES[name] is LARGE:
            self.answer(
                302,
                Location=f"{self.hub.elsewhere}/blob?signature={self.hub.signature}",
                X_Repo_Commit=COMMIT,
                X_Linked_Size=str(len(LARGE)),
                X_Linked_Etag=f'"{hashlib.sha256(LARGE).hexdigest()}"',
            )
        else:
            data = FILES[name]
            digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            self.answer_range(data, X_Repo_Commit=COMMIT, ETag=f'W/"{digest}"')

    def list_files(self, path: str) -> None:
        if path.rpartition("/tree/")[2] != "main":
            self.answer(404, X_Error_Code="RevisionNotFound")
            return
        items = [{"type": "file", "path": name, "size": len(FILES[name])} for name in FILES]
        items.append({"type": "directory", "path": "models", "size": 0})
        if "cursor=2" in self.path:
            self.answer(200, json.dumps(items[2:]).encode())
        else:
            link = f'<{self.hub.endpoint}{path}?recursive=true&cursor=2>; rel="next"'
            self.answer(200, json.dumps(items[:2]).encode(), Link=link)


@contextmanager
def serving() -> Iterator[FakeHub]:
    hub = FakeHub()
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), type(base.__name__, (base,), {"hub": hub}))
        for base in (_Hub, _Elsewhere)
    ]
    hub.endpoint, hub.elsewhere = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        for server in servers
    ]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
