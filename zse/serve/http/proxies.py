"""What a proxy in front says of a client, believed of the proxies that the user trusts.

Anybody can write these headers, so the address that counts is the last one that a trusted proxy saw
and that is no trusted proxy itself.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, TypeAlias

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
MAX_HOPS = 16
_EVERYWHERE = ("0.0.0.0/0", "::/0")
_SCHEMES = {
    "http": {"http": "http", "websocket": "ws"},
    "https": {"http": "https", "websocket": "wss"},
}


def networks_of(given: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of trusted proxies; ``*`` trusts whoever connects.

    Raises:
        UsageError: One is neither an address nor a network.
    """
    named = [name for each in given for name in (_EVERYWHERE if each == "*" else (each,))]
    try:
        return tuple(ipaddress.ip_network(name) for name in named)
    except ValueError as error:
        raise UsageError(
            f"trusted_proxy: {error}", hint="For example: --trusted-proxy 10.0.0.0/8"
        ) from None


class TrustedProxies:
    """Puts the client that a trusted proxy names, and its scheme, into the scope."""

    def __init__(self, app: ASGIApp, *, networks: tuple[Network, ...]) -> None:
        self.app = app
        self._networks = networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if peer is not None and self._trusts(peer[0]):
            headers = dict(scope["headers"])
            forwarded = [v for k, v in scope["headers"] if k == b"x-forwarded-for"]
            address = self._client_of(b",".join(forwarded).decode("latin-1"))
            if address is not None:
                scope["client"] = (address, 0)
            proto = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
            by_type = _SCHEMES.get(proto.rpartition(",")[2].strip().lower())
            if by_type is not None:
                scope["scheme"] = by_type[scope["type"]]
        await self.app(scope, receive, send)

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._networks)

    def _client_of(self, forwarded: str) -> str | None:
        """Return the last address that is no trusted proxy, else the first; None when none is."""
        found = None
        for hop in reversed(forwarded.split(",")[-MAX_HOPS:]):
            address = _without_port(hop.strip())
            if address is None:
                return found
            found = address
            if not self._trusts(address):
                return found
        return found


def _without_port(hop: str) -> str | None:
    """Return the address in ``1.2.3.4:80`` or ``[::1]:80``, ports or not; None where it is none."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None
