"""HTTP connections to one server, kept open between requests and shared by threads."""

from __future__ import annotations

import contextlib
import ssl
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from zse.errors import UsageError
from zse.stream.http_connection import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.stream.http_connection import HttpAnswer


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
        self._host, self._port = parts.hostname, port or {"http": 80, "https": 443}[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self.is_interrupted = False

    @contextlib.contextmanager
    def get(self, path: str, headers: Mapping[str, str]) -> Iterator[HttpAnswer]:
        """Send a GET and yield the answer; the connection is kept if its body was read whole.

        Raises:
            OSError: The connection failed.
        """
        connection = self._take()
        try:
            answer = connection.get(path, headers)
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
                connection.cut()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _take(self) -> HttpConnection:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._new_connection()
            self._busy.add(connection)
            return connection

    def _put_back(self, connection: HttpConnection, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if reusable and not self.is_interrupted:
                self._idle.append(connection)
                return
        connection.close()

    def _new_connection(self) -> HttpConnection:
        return HttpConnection(self._host, self._port, host_header=self.host_header, tls=self._tls)
