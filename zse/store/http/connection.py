"""One HTTP/1.1 connection, made for large bodies and many requests.

``http.client`` spends 0.2 ms of Python on a request and comes back to Python for each piece of a
body that has arrived. Here the kernel fills the caller's memory in one call, if the server keeps
up, and other threads run meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from zse.errors import StoreError, UsageError
from zse.records import record
from zse.store.http.answer import Answer, read_head, timeout_error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from zse.store.http.proxy import Proxy

CONNECT_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
_REFUSING = frozenset({401, 403, 405, 407})


@record
class Server:
    """Who is asked, and by which way. Connections to one are alike."""

    host: str
    """Name or address, without brackets."""
    port: int
    authority: str
    """Host and port as requests name them."""
    is_encrypted: bool
    proxy: Proxy | None = None


class Connection:
    """Connects when it is first used.

    Args:
        tls: Makes what encrypts; called for a server that wants it.
        timeout_seconds: How long nothing may come.
    """

    def __init__(
        self,
        server: Server,
        tls: Callable[[], ssl.SSLContext],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._server, self._tls = server, tls
        self._timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> None:
        """Connect, if it is not done.

        Raises:
            OSError: There is no way to the server.
            StoreError: The proxy refuses.
        """
        if self._socket is None:
            self._socket = self._connect()

    def ask(
        self, target: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes = b""
    ) -> Answer:
        """Send a request; the answer's body must be read whole before the next one.

        Raises:
            OSError: The connection failed, or the answer is not HTTP.
            UsageError: A header holds a line break, or characters that no header can carry.
        """
        self.open()
        assert self._socket is not None
        try:
            self._socket.sendall(self._request(method, target, headers, body) + body)
            head, rest = read_head(self._socket)
        except BlockingIOError as error:
            raise timeout_error(error) from error
        return Answer(self._socket, head, rest, has_body=method != "HEAD")

    def cut(self) -> None:
        """Make a read that waits, in another thread, fail at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        server = self._server
        relayed = (
            "" if server.is_encrypted or server.proxy is None else f"http://{server.authority}"
        )
        lines = [
            f"{method} {relayed}{target} HTTP/1.1",
            f"Host: {server.authority}",
            "Accept-Encoding: identity",
        ]
        if relayed and server.proxy and server.proxy.authorization:
            lines.append(f"Proxy-Authorization: {server.proxy.authorization}")
        if method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        lines += (f"{name}: {value}" for name, value in headers.items())
        for line in lines:
            _check_line(line)
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")

    def _connect(self) -> socket.socket:
        nearest = self._server.proxy or self._server
        plain = socket.create_connection(
            (nearest.host, nearest.port), timeout=min(CONNECT_SECONDS, self._timeout_seconds)
        )
        try:
            plain.settimeout(self._timeout_seconds)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._server.is_encrypted:
                if self._server.proxy is not None:
                    self._tunnel(plain, self._server.proxy)
                return self._tls().wrap_socket(plain, server_hostname=self._server.host)
            # The kernel's own timeout: Python's asks before each read whether there is something.
            seconds, part = divmod(self._timeout_seconds, 1)
            limit = struct.pack("ll", int(seconds), int(part * 1e6))
            plain.settimeout(None)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except BaseException:
            plain.close()
            raise
        return plain

    def _tunnel(self, plain: socket.socket, proxy: Proxy) -> None:
        """Let the proxy connect to the server; what follows is between the two of us."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        target = f"{host}:{self._server.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        plain.sendall("\r\n".join([*lines, "\r\n"]).encode("latin-1"))
        answer = Answer(plain, *read_head(plain), has_body=False)
        if answer.status == 200:
            return
        said = f"the proxy {proxy.host}:{proxy.port} answered {answer.status} {answer.reason}"
        if answer.status in _REFUSING:
            raise StoreError(
                f"{said} to CONNECT {target}",
                hint="Check the account in HTTPS_PROXY, or name the server in NO_PROXY.",
            )
        raise ConnectionError(said)


def _check_line(line: str) -> None:
    """Refuse a line of a request's head that would be two, or cannot be sent.

    Its value is not told: it may be a key.
    """
    if "\r" in line or "\n" in line:
        raise UsageError("a header of a request holds a line break", hint="Check credentials.")
    try:
        line.encode("latin-1")
    except UnicodeEncodeError:
        name = line.partition(":")[0]
        raise UsageError(
            f"the header {name[:40]!a} of a request holds characters beyond Latin-1, which HTTP "
            "does not carry",
            hint="Check credentials: tokens and keys are plain ASCII.",
        ) from None
