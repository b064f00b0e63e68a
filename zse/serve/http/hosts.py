"""The names that the server answers to.

Without this, a web page could reach a server on loopback by rebinding its own name to 127.0.0.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.serve.sockets import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ANY_ORIGIN = "*"
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


def answered_hosts(bound: str, given: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names that a server answers to; None when to any.

    Args:
        bound: The address that it listens on.
        given: Names that the user allows besides; ``*`` allows any.
    """
    if "*" in given or not (given or is_loopback(bound)):
        return None
    return LOOPBACK_HOSTS | {bound.lower()} | {name.lower() for name in given}


def name_of(host: str) -> str | None:
    """Return the name in a Host header or in an origin's authority; None when it is none."""
    match = _HOST.fullmatch(host)
    return match.group(1).lower() if match else None


class AllowedHosts:
    """Refuses requests whose Host header names another host.

    Args:
        hosts: Names without ports, in lower case.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str]) -> None:
        self.app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if name_of(host) in self._hosts:
            await self.app(scope, receive, send)
            return
        from zse.serve.http.errors import MisdirectedError, error_response

        refusal = MisdirectedError(
            f"The host '{host[:100]}' is not served here; use {_listed(self._hosts)}."
        )
        await error_response(refusal, {"connection": "close"})(scope, receive, send)


def _listed(hosts: frozenset[str]) -> str:
    named = sorted(hosts - LOOPBACK_HOSTS) or ["localhost", "127.0.0.1"]
    return f"{' or '.join(named[:3])}, or allow it with --allowed-host"
