"""One HTTP/1.1 connection for GETs, made for large bodies and many requests.

``http.client`` spends 0.2 ms of Python on a request and comes back to Python for each piece of a
body that has arrived. Here the kernel fills the caller's memory in one call, if the server keeps
up, and other threads run meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

TIMEOUT_SECONDS = 30
_LARGEST_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 4096


class HttpAnswer:
    """Status and headers of an answer; the body is read from it.

    Args:
        connection: Where the body comes from.
        head: Status line and header lines.
        rest: The part of the body that came with them.

    Raises:
        ConnectionError: This is no HTTP, or a body whose end is marked in a way not known here.
    """

    def __init__(self, connection: socket.socket, head: bytes, rest: bytes) -> None:
        self._connection = connection
        self._rest = rest
        # A TLS connection has no such flag: it hands out one record at a time.
        self._flags = socket.MSG_WAITALL if type(connection) is socket.socket else 0
        status_line, _, lines = head.decode("latin-1").partition("\r\n")
        version, _, status = status_line.partition(" ")
        code, _, self.reason = status.partition(" ")
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise ConnectionError(f"{status_line[:80]!r} is no answer of an HTTP server")
        self.status = int(code)
        self._headers: dict[str, str] = {}
        for line in lines.split("\r\n"):
            name, _, value = line.partition(":")
            self._headers[name.lower()] = value.strip()
        if self.getheader("Transfer-Encoding", "identity") != "identity":
            raise ConnectionError("the server does not say how long its answer is")
        length = self.getheader("Content-Length")
        self.length = int(length) if length.isdecimal() else None
        """Bytes of the body that were not read yet; None where the body ends with the
        connection."""
        self.will_close = (
            self.length is None
            or version == "HTTP/1.0"
            or self.getheader("Connection").lower() == "close"
        )

    def getheader(self, name: str, default: str = "") -> str:
        """Return a header's value."""
        return self._headers.get(name.lower(), default)

    def readinto(self, view: memoryview) -> int:
        """Read into ``view``; return how much, which is 0 at the end.

        Raises:
            OSError: The connection failed, or nothing came for 30 seconds.
        """
        wanted = len(view) if self.length is None else min(len(view), self.length)
        if self._rest:
            count = min(wanted, len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
        elif wanted:
            try:
                count = self._connection.recv_into(view, wanted, self._flags)
            except BlockingIOError as error:
                raise _timeout(error) from error
        else:
            count = 0
        if self.length is not None:
            self.length -= count
        return count

    def read(self) -> bytes:
        """Return the rest of the body, which is shorter than it should be if it was cut."""
        found, buffer = bytearray(), memoryview(bytearray(_PIECE_BYTES))
        while count := self.readinto(buffer):
            found += buffer[:count]
        return bytes(found)


class HttpConnection:
    """Connects when it is first used.

    Args:
        host: Name or address of the server.
        port: Of the server.
        host_header: Host and port as requests name them.
        tls: For a connection that is encrypted.
    """

    def __init__(
        self, host: str, port: int, *, host_header: str, tls: ssl.SSLContext | None
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._host_header = host_header
        self._socket: socket.socket | None = None

    def get(self, path: str, headers: Mapping[str, str]) -> HttpAnswer:
        """Ask for a path; the answer's body must be read whole before the next request.

        Raises:
            OSError: The connection failed, or the answer is not HTTP.
            UsageError: A header holds what ends a line.
        """
        connection = self._socket = self._socket or self._connect()
        lines = [f"GET {path} HTTP/1.1", f"Host: {self._host_header}", "Accept-Encoding: identity"]
        lines += (f"{name}: {value}" for name, value in headers.items())
        if any("\r" in line or "\n" in line for line in lines):
            raise UsageError("a header of a request holds a line break", hint="Check credentials.")
        try:
            connection.sendall("\r\n".join([*lines, "\r\n"]).encode("latin-1"))
            head, rest = _read_head(connection, b"")
            while head.split(b" ", 2)[1:2] == [b"100"]:  # it only announces another answer
                head, rest = _read_head(connection, rest)
        except BlockingIOError as error:
            raise _timeout(error) from error
        return HttpAnswer(connection, head, rest)

    def cut(self) -> None:
        """Make a read that waits, in another thread, fail at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), timeout=TIMEOUT_SECONDS)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(plain, server_hostname=self._host)
            # The kernel's own timeout: Python's asks before each read whether there is something.
            limit = struct.pack("ll", TIMEOUT_SECONDS, 0)
            plain.settimeout(None)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except BaseException:
            plain.close()
            raise
        return plain


def _read_head(connection: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """Return the lines of an answer and what came behind them."""
    while b"\r\n\r\n" not in rest:
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionError("the server closed the connection")
        rest += piece
        if len(rest) > _LARGEST_HEAD_BYTES:
            raise ConnectionError("the server's answer has no end of its headers")
    head, _, rest = rest.partition(b"\r\n\r\n")
    return head, rest


def _timeout(error: OSError) -> TimeoutError:
    """Name the kernel's timeout, which looks like a socket that does not wait, what it is."""
    return TimeoutError(f"nothing came for {TIMEOUT_SECONDS} seconds ({error.strerror})")
