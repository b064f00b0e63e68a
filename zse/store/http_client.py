"""HTTP requests with the standard library: connections kept open, redirects followed with care.

``http.client`` reads straight into the caller's memory; no other client here does.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import threading
import urllib.request
import weakref
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from zse.errors import RefusedError, StoreError
from zse.store.location import is_loopback
from zse.store.retry import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
MAX_REDIRECTS = 8
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SMALL_BODY_BYTES = 1 << 20
CUT_ERRORS: tuple[type[Exception], ...] = (OSError, http.client.HTTPException)
"""What a failed connection raises."""


class CertificateError(StoreError):
    """A server's certificate is not one that this machine trusts."""


class Answer:
    """One answer. Read its body, then close it: the connection is kept if the body was read."""

    def __init__(
        self, client: HttpClient, url: str, connection: http.client.HTTPConnection
    ) -> None:
        self._client, self._connection = client, connection
        self._response = connection.getresponse()
        self.url = url
        """Where the answer came from, after redirects."""
        self.status = self._response.status
        self.reason = self._response.reason

    def header(self, name: str) -> str:
        """Return a header's value; empty when there is none."""
        return self._response.headers.get(name) or ""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer``; return how much, less than asked for at the end."""
        return self._response.readinto(buffer)

    def read_small(self) -> bytes:
        """Return a body of at most 1 MiB; the rest of a larger one is dropped."""
        return self._response.read(_SMALL_BODY_BYTES)

    def close(self) -> None:
        """Give the connection back, or close it when some of the body is left."""
        reusable = self._response.isclosed() or self._response.length == 0
        self._response.close()  # otherwise the connection waits for someone to read it
        self._client.put_back(self._connection, reusable=reusable and not self._response.will_close)


class HttpClient:
    """Connections to any number of servers, shared by threads, closed with the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = defaultdict(list)
        self._keys: dict[int, tuple[str, str]] = {}
        self._has_connected = False
        weakref.finalize(self, _close_all, self._idle)

    def open(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        private: Mapping[str, str] | None = None,
        follow_elsewhere: bool = True,
    ) -> Answer:
        """Send a request and return the answer, after redirects.

        Args:
            url: ``https://...``, or ``http://`` on loopback.
            headers: To send, wherever a redirect leads.
            method: GET or HEAD.
            private: Headers for the server of ``url`` alone: a redirect must not carry them away.
            follow_elsewhere: Whether a redirect to another server is followed.

        Raises:
            OSError, http.client.HTTPException: The connection failed.
            UnreachableError: So did every one before.
            CertificateError: The server's certificate is wrong.
            StoreError: Redirects lead nowhere.
            RefusedError: A redirect leads to an address that is not encrypted.
        """
        home = _server(urlsplit(url))
        for _ in range(MAX_REDIRECTS + 1):
            parts = urlsplit(url)
            sent = {**headers, **(private or {})} if _server(parts) == home else dict(headers)
            answer = self._send(method, url, parts, sent)
            target = answer.header("Location")
            if answer.status not in _REDIRECTS or not target:
                return answer
            following = urlsplit(urljoin(url, target))
            if _server(following) != home and not follow_elsewhere:
                return answer
            answer.read_small()
            answer.close()
            _check_redirect(parts, following)
            url = following.geturl()
        raise StoreError(
            f"{_shown(url)}: more than {MAX_REDIRECTS} redirects", hint="Check the address."
        )

    def put_back(self, connection: http.client.HTTPConnection, *, reusable: bool) -> None:
        """Take a connection back."""
        with self._lock:
            key = self._keys.pop(id(connection), None)
            if reusable and key is not None:
                self._idle[key].append(connection)
                return
        connection.close()

    def _send(self, method: str, url: str, parts: SplitResult, headers: dict[str, str]) -> Answer:
        path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        while True:
            connection, is_used = self._take(parts)
            try:
                if connection.sock is None:
                    self._connect(connection)
                connection.request(method, path, headers=headers)
                return Answer(self, url, connection)
            except ssl.SSLCertVerificationError as error:
                self.put_back(connection, reusable=False)
                raise CertificateError(
                    f"the certificate of {parts.hostname} is not valid: {error.verify_message}",
                    hint="Check the address, this machine's clock and its CA certificates.",
                ) from error
            except (http.client.RemoteDisconnected, ConnectionError):
                self.put_back(connection, reusable=False)
                if not is_used:  # a server may close an idle connection at any time
                    raise
            except BaseException:
                self.put_back(connection, reusable=False)
                raise

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.connect()
        except ssl.SSLError:
            raise
        except OSError as error:
            if self._has_connected:
                raise
            raise UnreachableError(error.errno, error.strerror or str(error)) from error
        self._has_connected = True
        connection.sock.settimeout(TIMEOUT_SECONDS)

    def _take(self, parts: SplitResult) -> tuple[http.client.HTTPConnection, bool]:
        key = _server(parts)
        with self._lock:
            is_used = bool(self._idle[key])
            connection = self._idle[key].pop() if is_used else self._connection(parts)
            self._keys[id(connection)] = key
            return connection, is_used

    def _connection(self, parts: SplitResult) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS)
        proxy = "" if is_loopback(host) else urllib.request.getproxies().get("https", "")
        if not proxy or urllib.request.proxy_bypass(host):
            return http.client.HTTPSConnection(
                host, parts.port, timeout=CONNECT_SECONDS, context=self._tls
            )
        through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        connection = http.client.HTTPSConnection(
            through.hostname or "", through.port or 80, timeout=CONNECT_SECONDS, context=self._tls
        )
        connection.set_tunnel(host, parts.port, headers=_proxy_headers(through))
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """What this machine trusts. Read once: it takes 36 ms, as long as a handshake."""
        return ssl.create_default_context()


def same_server(url: str, other: str) -> bool:
    """Whether two URLs are answered by the same server."""
    return _server(urlsplit(url)) == _server(urlsplit(other))


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    account = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(account.encode()).decode()}


def _server(parts: SplitResult) -> tuple[str, str]:
    return parts.scheme, parts.netloc


def _check_redirect(before: SplitResult, after: SplitResult) -> None:
    host = after.hostname or ""
    if after.scheme == "https" or (after.scheme == "http" and is_loopback(host)):
        # A page of the internet must not make this machine talk to its own services.
        if is_loopback(host) and not is_loopback(before.hostname or ""):
            raise RefusedError(
                f"{before.hostname} redirects to this machine itself", hint="Check the address."
            )
        return
    raise RefusedError(
        f"{before.hostname} redirects to {after.scheme}://{host}, which is not encrypted",
        hint="Ask whoever runs the server for an https address.",
    )


def _shown(url: str) -> str:
    return url.partition("?")[0]


def _close_all(idle: dict[tuple[str, str], list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        while connections:
            with contextlib.suppress(OSError):
                connections.pop().close()
