"""A small S3 look-alike that misbehaves on demand, for the failures that a good server never shows."""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fault = Callable[["Handler"], bool]


class FaultyS3(ThreadingHTTPServer):
    """Objects in memory. ``fault`` sees every request first and returns True when it answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.parts: dict[int, bytes] = {}
        self.uploads: dict[str, str] = {}
        """Id -> path of the uploads that nobody finished."""
        self.metadata: dict[str, str] = {}
        self.etags: dict[str, str] = {}
        self.fault: Fault = lambda _request: False
        self.requests: list[str] = []

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def seen(self, pattern: str) -> list[str]:
        """Return the requests (``METHOD path range``, ``LOOK`` for a GET that opens) that match."""
        return [line for line in self.requests if re.search(pattern, line)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyS3

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.body = self.rfile.read(length)
        wanted = self.headers.get("Range", "")
        # The store opens an object by its first byte.
        self.kind = "LOOK" if wanted == "bytes=0-0" else self.command
        self.server.requests.append(f"{self.kind} {self.path} {wanted}")
        if not self.server.fault(self):
            getattr(self, "on_" + self.command.lower())()

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> bool:
        """Answer with an S3 error; always True, so that a fault can end with it."""
        self.answer(
            status, f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()
        )
        return True

    def on_head(self) -> None:
        found = self.server.objects.get(self.path)
        if self.path.count("/") == 1:
            self.answer(200)
        elif found is None:
            self.answer(404)
        else:
            size = {"Content-Length": str(len(found[0]))}
            self.answer(200, headers={**self.described(*found), **size})

    def on_get(self) -> None:
        if "?uploads" in self.path:
            items = "".join(
                f"<Upload><Key>{path.split('/', 2)[2]}</Key><UploadId>{upload_id}</UploadId>"
                f"<Initiated>2026-01-02T03:04:05Z</Initiated></Upload>"
                for upload_id, path in self.server.uploads.items()
            )
            self.answer(
                200, f"<ListMultipartUploadsResult>{items}</ListMultipartUploadsResult>".encode()
            )
            return
        if "uploadId=" in self.path:
            items = "".join(
                f"<Part><PartNumber>{number}</PartNumber><Size>{len(data)}</Size>"
                f'<ETag>"{hashlib.md5(data).hexdigest()}"</ETag></Part>'
                for number, data in sorted(self.server.parts.items())
            )
            self.answer(200, f"<ListPartsResult>{items}</ListPartsResult>".encode())
            return
        if self.path not in self.server.objects:
            self.refuse(404, "NoSuchKey")
            return
        data, metadata = self.server.objects[self.path]
        if "Range" not in self.headers:
            self.answer(200, data, self.described(data, metadata))
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(data):
            self.refuse(416, "InvalidRange")
            return
        where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self.answer(206, data[first : last + 1], {**self.described(data, metadata), **where})

    def on_put(self) -> None:
        part = re.search(r"partNumber=(\d+)", self.path)
        if part:
            self.server.parts[int(part[1])] = self.body
        else:
            self.store(self.path, self.body, self.sent_metadata())
        self.answer(200, headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})

    def on_post(self) -> None:
        if self.path.endswith("?uploads"):
            self.server.metadata = self.sent_metadata()
            upload_id = f"u{len(self.server.seen('POST .*[?]uploads'))}"
            self.server.uploads[upload_id] = self.path.partition("?")[0]
            self.server.parts.clear()
            name = "InitiateMultipartUploadResult"
            self.answer(200, f"<{name}><UploadId>{upload_id}</UploadId></{name}>".encode())
        else:
            whole = b"".join(self.server.parts[number] for number in sorted(self.server.parts))
            self.store(self.path.partition("?")[0], whole, self.server.metadata)
            self.server.uploads.pop(self.path.partition("uploadId=")[2], None)
            self.answer(200, b"<CompleteMultipartUploadResult/>")

    def on_delete(self) -> None:
        self.server.uploads.pop(self.path.partition("uploadId=")[2], None)
        self.answer(204)

    def store(self, path: str, data: bytes, metadata: dict[str, str]) -> None:
        self.server.objects[path] = (data, metadata)

    def sent_metadata(self) -> dict[str, str]:
        names = [name for name in self.headers if name.lower().startswith("x-amz-meta-")]
        return {name.lower(): self.headers[name] for name in names}

    def described(self, data: bytes, metadata: dict[str, str]) -> dict[str, str]:
        # Not the form of an MD5: like a server that encrypts.
        etag = self.server.etags.get(self.path, f"opaque-{len(data)}")
        return {"ETag": f'"{etag}"', **metadata}


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(Handler, f"do_{_method}", Handler.handle_any)


@pytest.fixture
def faulty_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """The server, with the AWS variables pointing at it and no pauses between attempts."""
    server = FaultyS3()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
