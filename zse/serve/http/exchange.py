"""One request and its answer, between a connection and the application.

Answers of known length go out as they are, others in chunks; an answer that cannot be ended as it
was begun ends the connection.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import TYPE_CHECKING, Any

from zse.serve.http.errors import error_response
from zse.serve.http.framing import as_chunk
from zse.serve.http.streaming import FRAMES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

    from zse.serve.http.connection import Connection
    from zse.serve.http.framing import Framing
    from zse.serve.http.head import Head
    from zse.serve.http.shortcut import Shortcut

LOG = logging.getLogger("zse.serve")

_NO_BODY = frozenset({204, 304})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_STATUS_LINES = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii"))
    for status in http.HTTPStatus
}


class Exchange:
    """An ASGI server for one request.

    Args:
        framing: Takes the body out of what the connection receives.
        keeps_alive: Whether another request may follow on the connection.
    """

    def __init__(
        self,
        connection: Connection,
        head: Head,
        scope: Scope,
        *,
        framing: Framing,
        keeps_alive: bool,
    ) -> None:
        self.framing = framing
        self.keeps_alive = keeps_alive
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.has_begun = False
        """Whether the head of the answer is out."""
        self.num_held = 0
        """Bytes of the body that the application has not asked for."""
        self._connection = connection
        self._head = head
        self._scope = scope
        scope["extensions"] = {FRAMES: self}
        self._pieces: list[bytes] = []
        self._is_given = False
        """Whether the application has all of the body."""
        self._news = asyncio.Event()
        self._is_over = False
        """Whether the answer is complete, or the client gone."""
        self._awaits_continue = head.awaits_continue
        self._is_chunked = False
        self._has_body = True
        self._borrower: Shortcut | None = None
        self._num_left: int | None = None
        """Bytes of an answer of known length that are not written yet."""

    @property
    def written_at(self) -> float:
        """When whoever borrowed last wrote last, on ``time.perf_counter``; 0 when never."""
        return 0.0 if self._borrower is None else self._borrower.written_at

    # --- called by the connection ---------------------------------------------------------------

    def add(self, piece: bytes) -> None:
        """Take a piece of the body; the framing says whether it was the last."""
        self._pieces.append(piece)
        self.num_held += len(piece)
        self._news.set()

    def lose_client(self) -> None:
        self._is_over = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            LOG.exception("unexpected failure", extra={"path": self._scope["path"][:200]})
        finally:
            if not self._is_over:
                self._end_broken()

    def _end_broken(self) -> None:
        """End an answer that the application did not."""
        self._is_over = True
        if self.has_begun:
            self._connection.abort()
            return
        self.keeps_alive = False
        self._connection.write(refusal(RuntimeError()))
        self._connection.end_exchange(self)

    # --- called by the application --------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next of the body, or in the end that the client is gone."""
        if self._awaits_continue and not self._is_over:
            self._awaits_continue = False
            self._connection.write(_CONTINUE)
        while not self._is_over:
            if self._pieces or (self.framing.is_done and not self._is_given):
                body = b"".join(self._pieces)
                self._pieces.clear()
                self.num_held = 0
                self._is_given = self.framing.is_done
                if not self._is_given:
                    self._connection.resume_reading()
                return {"type": "http.request", "body": body, "more_body": not self._is_given}
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Write a part of the answer, as soon as the client takes it."""
        connection = self._connection
        if connection.is_blocked:
            await connection.writable()
        if self._is_over:
            return
        if not self.has_begun:
            self._begin(message)
            return
        body = message.get("body", b"")
        if body and self._has_body:
            if self._is_chunked:
                connection.write(as_chunk(body))
            else:
                self._write_counted(body)
        if not message.get("more_body", False):
            self._end()

    def take(self, frame: bytes, *, waits: bool) -> bool:
        """Write a part of a stream past all wrappers, where the client takes it at once."""
        if self._connection.is_blocked or not self._is_chunked or self._is_over:
            return False
        if waits:
            self._connection.write(as_chunk(frame))
        else:
            self._connection.write_now(as_chunk(frame))
        return True

    def lend(self, borrower: Shortcut) -> int | None:
        """Lend the connection to another thread for chunks of a stream; as ``Connection.lend``."""
        if not self._is_chunked or self._is_over:
            return None
        self._borrower = borrower
        return self._connection.lend(borrower)

    def take_back(self) -> None:
        """End what was lent."""
        self._connection.take_back()

    def _begin(self, message: Message) -> None:
        status: int = message["status"]
        headers = [*self.default_headers, *message.get("headers", ())]
        names = {name.lower(): value for name, value in headers}
        self._awaits_continue = False
        self._has_body = self._head.method != "HEAD" and status not in _NO_BODY
        if self._has_body and b"content-length" in names:
            self._num_left = int(names[b"content-length"])
        elif self._has_body and self._head.http_version == "1.1":
            self._is_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        elif self._has_body:
            self.keeps_alive = False  # its end is the end of the connection
        if b"close" in names.get(b"connection", b"").lower():
            self.keeps_alive = False
        elif not self.keeps_alive:
            headers.append((b"connection", b"close"))
        self._connection.write(_encode_head(status, headers))
        self.has_begun = True

    def _write_counted(self, body: bytes) -> None:
        if self._num_left is not None:
            if len(body) > self._num_left:
                raise RuntimeError("the answer is longer than its content-length")
            self._num_left -= len(body)
        self._connection.write(body)

    def _end(self) -> None:
        if self._has_body and self._num_left:
            raise RuntimeError("the answer is shorter than its content-length")
        if self._is_chunked:
            self._connection.write(_LAST_CHUNK)
        self._is_over = True
        self._news.set()
        self._connection.end_exchange(self)


def refusal(error: BaseException) -> bytes:
    """Return a whole answer that says what is wrong, and that the connection closes."""
    answer = error_response(error, {"connection": "close"})
    return _encode_head(answer.status_code, answer.raw_headers) + bytes(answer.body)


def _encode_head(status: int, headers: list[tuple[bytes, Any]]) -> bytes:
    """Return the head of an answer.

    Raises:
        RuntimeError: A header would be read as two.
    """
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    lines += [b"%b: %b\r\n" % header for header in headers]
    head = b"".join(lines)
    if not len(lines) == head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r"):
        raise RuntimeError("a header of the answer holds a line end")
    return head + b"\r\n"
