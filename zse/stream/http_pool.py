"""HTTP connections to one server, kept open between requests and shared by threads."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_SECONDS = 30.0


class HttpPool:
    """Plain or TLS connections to the server of a URL.

    Args:
        url: ``http(s)://host[:port]``; a path is ignored.

    Raises:
        UsageError: The URL names no server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(
                f"{url!r} is not usable as a server's address",
                hint="Write http(s)://host[:port].",
            )
        self.host_header = parts.netloc.rpartition("@")[2]
        self._host, self._port = parts.hostname, port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self.is_interrupted = False

    @contextlib.contextmanager
    def get(self, path: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Send a GET and yield the answer; the connection is kept if its body was read whole.

        Raises:
            OSError, http.client.HTTPException: The connection failed.
        """
        connection = self._take()
        try:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            yield answer
            reusable = answer.length == 0 and not answer.will_close
        except BaseException:
            reusable = False
            raise
        finally:
            self._put_back(connection, reusable=reusable)

    def interrupt(self) -> None:
        """Cut every connection that is in use; reads fail at once."""
        with self._lock:
            self.is_interrupted = True
            for connection in self._busy:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._new_connection()
            self._busy.add(connection)
            return connection

    def _put_back(self, connection: http.client.HTTPConnection, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if reusable and not self.is_interrupted:
                self._idle.append(connection)
                return
        connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
