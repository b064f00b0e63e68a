"""Which web pages may read answers: none but our own, unless an origin is allowed by name.

Answers never allow cookies: keys are sent in a header, by the page that has them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.serve.http.hosts import ANY_ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_SECONDS = 600
"""How long a browser need not ask again."""
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_METHODS = b"GET, POST, DELETE, OPTIONS"
_EXPOSED = b"x-request-id, server-timing, x-zse-ignored, retry-after, retry-after-ms"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9, \t_-]{0,2000}")


def origins_of(given: Iterable[str]) -> frozenset[str]:
    """Return the origins that are allowed, as browsers write them.

    Raises:
        UsageError: One is no origin.
    """
    origins = frozenset(each.lower().rstrip("/") for each in given)
    for origin in origins - {ANY_ORIGIN}:
        if _ORIGIN.fullmatch(origin) is None:
            raise UsageError(
                f"cors_origin is {origin!r}, expected scheme and host and no path",
                hint="For example: --cors-origin https://app.example.com",
            )
    return origins


class CrossOrigin:
    """Answers browsers that ask on behalf of a page of another origin."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str]) -> None:
        self.app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin: bytes = headers.get(b"origin", b"")
        if scope["type"] != "http" or not self._allows(origin):
            await self.app(scope, receive, send)
            return
        allowed = [
            (b"access-control-allow-origin", b"*" if ANY_ORIGIN in self._origins else origin),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(headers, allowed, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", _EXPOSED)
                message["headers"] = [*message.get("headers", ()), *allowed, exposed]
            await send(message)

        await self.app(scope, receive, send_allowed)

    def _allows(self, origin: bytes) -> bool:
        return bool(origin) and bool({ANY_ORIGIN, origin.decode("latin-1").lower()} & self._origins)


async def _answer_preflight(
    headers: dict[bytes, bytes], allowed: list[tuple[bytes, bytes]], send: Send
) -> None:
    """Say what a page may send; the answer has no body."""
    asked = headers.get(b"access-control-request-headers", b"")
    answer = [
        *allowed,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", asked if _HEADER_NAMES.fullmatch(asked) else b""),
        (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
