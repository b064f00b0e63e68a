"""HTTP connections, kept open between requests and shared by threads; redirects taken with care."""

from __future__ import annotations

import contextlib
import ssl
import threading
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urljoin, urlsplit

from zse.errors import RefusedError, StoreError, UsageError
from zse.store.http.connection import TIMEOUT_SECONDS, Connection, Server
from zse.store.http.proxy import is_link_local, proxy_for
from zse.store.http.retry import UnreachableError
from zse.store.location import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.settings import ProxySettings
    from zse.store.http.answer import Answer

MAX_REDIRECTS = 8
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Follow = Literal["anywhere", "home", "nowhere"]
"""Which redirects are followed; ``home`` is the server that was asked."""


class CertificateError(StoreError):
    """A server's certificate is not one that this machine trusts."""


class _Route:
    """A server, and the connections to it that nobody uses."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.idle: list[Connection] = []


class HttpPool:
    """Connections to any number of servers, closed with the object.

    Args:
        proxies: Which requests go through a proxy.
        ca_bundle: File of the certificates to trust; empty means this machine's.
        timeout_seconds: How long nothing may come.
    """

    def __init__(
        self,
        proxies: ProxySettings,
        *,
        ca_bundle: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._proxies, self._ca_bundle = proxies, ca_bundle
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._routes: dict[tuple[str, str], _Route] = {}
        self._busy: set[Connection] = set()
        self._has_connected = False
        self.is_interrupted = False
        weakref.finalize(self, _close_all, self._routes)

    @contextlib.contextmanager
    def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        private: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes = b"",
        follow: Follow = "anywhere",
    ) -> Iterator[Answer]:
        """Send a request and yield the answer; the connection is kept if its body was read whole.

        Args:
            headers: To send, wherever a redirect leads.
            private: Headers for the server of ``url`` alone: a redirect must not carry them away.

        Raises:
            OSError: The connection failed.
            UnreachableError: So did every one before.
            CertificateError: The server's certificate is wrong.
            UsageError: The URL names no server.
            StoreError: Redirects lead nowhere.
            RefusedError: A redirect leads to where it must not.
        """
        home = url
        for _ in range(MAX_REDIRECTS + 1):
            sent = {**headers, **(private or {})} if same_server(url, home) else headers
            route = self._route(urlsplit(url))
            connection, answer = self._send(route, method, _target(url), sent, body)
            is_reusable = False
            try:
                answer.url = url
                following = _redirect_of(answer)
                if not following or not _is_followed(home, following, follow):
                    following = ""
                    yield answer
                else:
                    answer.read()
                is_reusable = answer.is_reusable
            finally:
                self._put_back(route, connection, is_reusable=is_reusable)
            if not following:
                return
            _check_redirect(urlsplit(url), urlsplit(following))
            url = following
        raise StoreError(
            f"{url.partition('?')[0]}: more than {MAX_REDIRECTS} redirects",
            hint="Check the address.",
        )

    def interrupt(self) -> None:
        """Cut every connection that is in use; reads fail at once."""
        with self._lock:
            self.is_interrupted = True
            for connection in self._busy:
                connection.cut()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            _close_all(self._routes)

    def _send(
        self, route: _Route, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[Connection, Answer]:
        while True:
            connection = self._take(route)
            was_open = connection.is_open
            try:
                self._open(connection)
                return connection, connection.ask(target, headers, method=method, body=body)
            except ssl.SSLCertVerificationError as error:
                self._put_back(route, connection)
                raise CertificateError(
                    f"the certificate of {route.server.host} is not valid: {error.verify_message}",
                    hint="Check the address, this machine's clock and its CA certificates.",
                ) from error
            except ConnectionError:
                self._put_back(route, connection)
                # A server may close an idle connection at any time.
                if not was_open or self.is_interrupted:
                    raise
            except BaseException:
                self._put_back(route, connection)
                raise

    def _open(self, connection: Connection) -> None:
        try:
            connection.open()
        except ssl.SSLError:
            raise
        except OSError as error:
            if self._has_connected:
                raise
            raise UnreachableError(error.errno, error.strerror or str(error)) from error
        self._has_connected = True

    def _take(self, route: _Route) -> Connection:
        with self._lock:
            if route.idle:
                connection = route.idle.pop()
            else:
                connection = Connection(
                    route.server, lambda: self._tls, timeout_seconds=self._timeout_seconds
                )
            self._busy.add(connection)
            return connection

    def _put_back(
        self, route: _Route, connection: Connection, *, is_reusable: bool = False
    ) -> None:
        with self._lock:
            self._busy.discard(connection)
            if is_reusable and not self.is_interrupted:
                route.idle.append(connection)
                return
        connection.close()

    def _route(self, parts: SplitResult) -> _Route:
        key = parts.scheme, parts.netloc
        with self._lock:
            if key not in self._routes:
                self._routes[key] = _Route(self._described(parts))
            return self._routes[key]

    def _described(self, parts: SplitResult) -> Server:
        try:
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            port = 0
        if not port or not parts.hostname:
            raise UsageError(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]} is not usable as a server's "
                "address",
                hint="Write http(s)://host[:port].",
            )
        return Server(
            host=parts.hostname,
            port=port,
            authority=parts.netloc.rpartition("@")[2],
            is_encrypted=parts.scheme == "https",
            proxy=proxy_for(parts.scheme, parts.hostname, port, self._proxies),
        )

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """What is trusted. Read once: it takes 36 ms, as long as a handshake."""
        try:
            return ssl.create_default_context(cafile=self._ca_bundle or None)
        except OSError as error:
            raise StoreError(
                f"the certificates in {self._ca_bundle} cannot be read: {error.strerror}",
                hint="Check AWS_CA_BUNDLE.",
            ) from error


def same_server(url: str, other: str) -> bool:
    """Whether two URLs are answered by the same server."""
    return urlsplit(url)[:2] == urlsplit(other)[:2]


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + ("?" + parts.query if parts.query else "")


def _is_followed(home: str, following: str, follow: Follow) -> bool:
    return follow == "anywhere" or (follow == "home" and same_server(following, home))


def _redirect_of(answer: Answer) -> str:
    """Return where an answer sends whoever asked; empty when it sends nobody anywhere."""
    if answer.status not in _REDIRECTS or not answer.header("Location"):
        return ""
    try:
        return urlsplit(urljoin(answer.url, answer.header("Location"))).geturl()
    except ValueError as error:
        raise StoreError(
            f"{urlsplit(answer.url).netloc} redirects to what is no address: {error}",
            hint="Check the address.",
        ) from error


def _check_redirect(before: SplitResult, after: SplitResult) -> None:
    here, host = before.hostname or "", after.hostname or ""
    if after.scheme != "https" and not (after.scheme == "http" and is_loopback(host)):
        raise RefusedError(
            f"{here} redirects to {after.scheme}://{host}, which is not encrypted",
            hint="Ask whoever runs the server for an https address.",
        )
    # A page of the internet must not make this machine talk to its own services.
    if (is_loopback(host) and not is_loopback(here)) or is_link_local(host):
        raise RefusedError(f"{here} redirects to this machine itself", hint="Check the address.")


def _close_all(routes: dict[tuple[str, str], _Route]) -> None:
    for route in routes.values():
        while route.idle:
            with contextlib.suppress(OSError):
                route.idle.pop().close()
