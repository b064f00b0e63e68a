"""One GET to a host that the operator named: no redirect, no private address, bounded.

The name is resolved once and the connection goes to the address that was checked, so that a name
which changes its mind between check and use (DNS rebinding) reaches nothing.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import msgspec

from zse.tools.registry import Tool, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Resolve = Callable[[str, int], list[str]]

_MOST_BYTES = 65_536
_TIMEOUT_SECONDS = 8.0
"""For all of an answer: who sends a byte now and then keeps nobody longer."""
_PORTS = {"http": 80, "https": 443}
_AROUND_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""Where the last 32 bits are an IPv4 address: of NAT64, and of forms that are no longer used."""


class Address(msgspec.Struct):
    url: str
    """https://HOST/PATH of a host that is allowed."""


def http_get(hosts: Iterable[str], *, resolve: Resolve | None = None) -> Tool:
    """Return the tool.

    Args:
        hosts: Names that may be asked: ``api.example.com``, ``*.example.com``, ``HOST:PORT``. An
            address of a private network is reached only where it is named itself.
        resolve: Returns the addresses of a name at a port; the system's where it is None.
    """
    allowed = tuple(host.strip().lower() for host in hosts if host.strip())
    return Tool(
        "http_get",
        f"Fetches a web page or an API's answer by GET. Hosts: {', '.join(allowed) or 'none'}.",
        Address,
        lambda asked: fetch(asked.url, allowed, resolve or _addresses),
    )


def fetch(
    url: str, allowed: tuple[str, ...], resolve: Resolve, *, seconds: float = _TIMEOUT_SECONDS
) -> dict[str, object]:
    """Return the status, the type and the text of what lies at an address, within some seconds.

    Raises:
        ToolError: The address may not be asked, or nobody answers.
    """
    parts = _checked(url, allowed)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    target = _public_address(host, port, allowed, resolve)
    connection = _Pinned(host, port, target, seconds, is_secure=parts.scheme == "https")
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    clock = threading.Timer(seconds, connection.cut)
    clock.daemon = True
    clock.start()
    response = None
    try:
        connection.request("GET", path, headers={"user-agent": "zse", "accept": "text/*, */*"})
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise ToolError(f"no answer from {host}: {type(error).__name__}") from None
    finally:
        clock.cancel()
        if response is not None:
            response.close()
        connection.close()
    if connection.is_cut:
        raise ToolError(f"no answer from {host} within {seconds:g} s")
    told: dict[str, object] = {
        "status": response.status,
        "type": response.headers.get("content-type", ""),
        "text": body.decode("utf-8", errors="replace"),
    }
    if 300 <= response.status < 400:
        told["location"] = response.headers.get("location", "")
    return told


def _checked(url: str, allowed: tuple[str, ...]) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ToolError(f"{url[:200]!r} is no address") from None
    if parts.scheme not in _PORTS or not host or parts.username is not None:
        raise ToolError(f"{url[:200]!r} is no http address without a user")
    if any(ord(character) < 33 or ord(character) > 126 for character in url):
        raise ToolError("an address has printable ASCII characters only")
    names = {host} if port is None else {f"{host}:{port}"}
    if port == _PORTS[parts.scheme]:
        names.add(host)
    if not any(_matches(pattern, name) for pattern in allowed for name in names):
        raise ToolError(f"{host!r} is not among the hosts that may be asked")
    return parts


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _public_address(host: str, port: int, allowed: tuple[str, ...], resolve: Resolve) -> str:
    """Return an address to connect to. All of a name must be public, or none is taken."""
    try:
        found = resolve(host, port)
    except (OSError, UnicodeError):
        raise ToolError(f"there is no host {host!r}") from None
    is_named = host in allowed or f"{host}:{port}" in allowed
    for address in found:
        is_literal = address == host
        if not _is_public(address) and not (is_literal and is_named):
            raise ToolError(f"{host!r} is an address of a private network")
    if not found:
        raise ToolError(f"there is no host {host!r}")
    return found[0]


def _is_public(address: str) -> bool:
    """Tell whether an address is one of the public network, and leads to no other one."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and any(found in network for network in _AROUND_IPV4):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(str(inner))
        if found.is_site_local:
            return False
    return found.is_global and not found.is_multicast


def _addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, which speaks of a host by its name, and can be cut."""

    def __init__(
        self, host: str, port: int, address: str, seconds: float, *, is_secure: bool
    ) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address = address
        self._is_secure = is_secure
        self._plain: socket.socket | None = None
        """Stays known where an answer has taken the connection over."""
        self.is_cut = False
        self.default_port = _PORTS["https" if is_secure else "http"]

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._plain = plain
        if self._is_secure:
            secure = ssl.create_default_context().wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = self._plain = secure
            secure.do_handshake()
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """End it, whoever waits for it, from another thread."""
        self.is_cut = True
        if self._plain is not None:
            with suppress(OSError):  # not TLS's own farewell, which another thread's read is in
                socket.socket.shutdown(self._plain, socket.SHUT_RDWR)
