"""What a server answers: status and headers at once, the body as it is read."""

from __future__ import annotations

import re
import socket

SMALL_BODY_BYTES = 1 << 20
_LARGEST_HEAD_BYTES = 64 << 10
_MOST_ANNOUNCEMENTS = 8
_MOST_TRAILERS = 64
_PIECE_BYTES = 4096
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([0-9]{3})(?: (.*))?")
_INFORMATIONAL = re.compile(rb"HTTP/1\.[0-9] 1[0-9]{2}(?: |\r\n|\Z)")
_NO_BODY = frozenset({204, 304})


class Answer:
    """Status and headers of an answer; the body is read from it.

    Args:
        head: Status line and header lines.
        rest: The part of the body that came with them.
        has_body: Whether the request is one whose answer has a body.

    Raises:
        ConnectionError: This is no HTTP, or a body whose end is marked in a way not known here.
    """

    def __init__(
        self, connection: socket.socket, head: bytes, rest: bytes, *, has_body: bool = True
    ) -> None:
        self._connection = connection
        self._rest = rest
        # A TLS connection has no such flag: it hands out one record at a time.
        self._flags = socket.MSG_WAITALL if type(connection) is socket.socket else 0
        status_line, _, lines = head.decode("latin-1").partition("\r\n")
        status = _STATUS_LINE.fullmatch(status_line)
        if status is None:
            raise ConnectionError(f"{status_line[:80]!r} is no answer of an HTTP server")
        self.url = ""
        """Where it came from, after redirects; set by the pool."""
        self.status, self.reason = int(status[2]), status[3] or ""
        self.headers = _headers_of(lines)
        """Lower-case name -> value."""
        has_body = has_body and self.status not in _NO_BODY
        self._is_chunked = has_body and self._coding() == "chunked"
        self._has_chunks_behind = False
        self.length = self._told_length() if has_body else 0
        """Bytes of the body, or of its current chunk, that were not read yet; None where the body
        ends with the connection."""
        self._will_close = (
            self.length is None or status[1] == "0" or self.header("Connection").lower() == "close"
        )

    @property
    def is_reusable(self) -> bool:
        """Whether the connection is good for another request: the body was read whole."""
        is_whole = self.length == 0 and not self._is_chunked and not self._rest
        return is_whole and not self._will_close

    def header(self, name: str) -> str:
        return self.headers.get(name.lower(), "")

    def readinto(self, view: memoryview) -> int:
        """Read into ``view``; return how much, which is 0 at the end.

        Raises:
            OSError: The connection failed, or nothing came in time.
        """
        if self._is_chunked and not self.length:
            self._begin_chunk()
        wanted = len(view) if self.length is None else min(len(view), self.length)
        if self._rest:
            count = min(wanted, len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
        elif wanted:
            try:
                count = self._connection.recv_into(view, wanted, self._flags)
            except BlockingIOError as error:
                raise timeout_error(error) from error
        else:
            count = 0
        if self.length is not None:
            self.length -= count
        return count

    def read(self, limit_bytes: int = SMALL_BODY_BYTES) -> bytes:
        """Return the rest of the body, or as much of it; it is shorter if it was cut."""
        found, buffer = bytearray(), memoryview(bytearray(_PIECE_BYTES))
        while count := self.readinto(buffer[: limit_bytes - len(found)]):
            found += buffer[:count]
        return bytes(found)

    def _coding(self) -> str:
        coding = self.header("Transfer-Encoding").lower() or "identity"
        if coding not in ("identity", "chunked"):
            raise ConnectionError(f"the answer comes as {coding!r}, which nobody asked for")
        return coding

    def _told_length(self) -> int | None:
        if self._is_chunked:
            return 0  # of the chunk that is not there yet
        length = self.header("Content-Length")
        return int(length) if _LENGTH.fullmatch(length) else None

    def _begin_chunk(self) -> None:
        if self._has_chunks_behind:
            self._read_line()  # what ends the chunk before
        self._has_chunks_behind = True
        size = _CHUNK_SIZE.fullmatch(self._read_line())
        if size is None:
            raise ConnectionError("a chunk of the server's answer has no length")
        self.length = int(size[1], 16)
        if self.length:
            return
        for _ in range(_MOST_TRAILERS):
            if not self._read_line():
                self._is_chunked = False
                return
        raise ConnectionError("the server's answer has no end of its trailers")

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._rest += _receive(self._connection, self._rest)
        line, _, self._rest = self._rest.partition(b"\r\n")
        return line


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return the lines of the final answer and what came behind them.

    Informational answers (1xx), such as 100 Continue and 103 Early Hints, are passed over.

    Raises:
        OSError: The connection failed, or the server says too much.
    """
    rest = b""
    for _ in range(_MOST_ANNOUNCEMENTS):
        while b"\r\n\r\n" not in rest:
            rest += _receive(connection, rest)
        head, _, rest = rest.partition(b"\r\n\r\n")
        if not _INFORMATIONAL.match(head):
            return head, rest
    raise ConnectionError("the server announces an answer for ever")


def timeout_error(error: OSError) -> TimeoutError:
    """Name the kernel's timeout, which looks like a socket that does not wait, what it is."""
    return TimeoutError(f"nothing came in time ({error.strerror})")


def _receive(connection: socket.socket, held: bytes) -> bytes:
    """Return the next bytes of lines, of which ``held`` came before."""
    if len(held) > _LARGEST_HEAD_BYTES:
        raise ConnectionError("the server's answer has no end of its headers")
    try:
        piece = connection.recv(_PIECE_BYTES)
    except BlockingIOError as error:
        raise timeout_error(error) from error
    if not piece:
        raise ConnectionError("the server closed the connection")
    return piece


def _headers_of(lines: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines.split("\r\n"):
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        if name == "content-length" and headers.get(name, value) != value:
            raise ConnectionError("the server names two lengths of its answer")
        headers[name] = value
    return headers
