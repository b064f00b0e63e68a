"""Which WebSockets are opened, and how much they may say.

Browsers let any page open a WebSocket to any server and send it the user's cookies; what they add
is the page's origin. A page of another origin is refused unless it is one of those that may read
answers; a program that sends no origin is no page.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zse.errors import OverloadedError, ZSEError
from zse.serve.http.errors import error_response
from zse.serve.http.hosts import ANY_ORIGIN
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MESSAGES_PER_SECOND = 20.0
MESSAGE_BURST = 100.0
_POLICY_VIOLATION = 1008


class ForeignOriginError(ZSEError):
    """A web page of another origin asked for a WebSocket."""

    http_status = 403
    error_code = "origin_not_allowed"


class WebSocketGuard:
    """Refuses WebSockets of foreign pages and more than are served at once; bounds their rate.

    Args:
        origins: Origins of other sites that may open one, as browsers write them.
        max_open: How many may be open, of all callers together.
    """

    def __init__(self, app: ASGIApp, *, origins: frozenset[str], max_open: int) -> None:
        self.app = app
        self._origins = origins
        self._max_open = max_open
        self._open = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        tenant: str = scope["state"]["caller"].tenant
        refusal = self._refuse(dict(scope["headers"]), tenant)
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
            return
        self._open.take(tenant, 1)
        try:
            await self.app(scope, _Paced(receive, send).receive, send)
        finally:
            self._open.take(tenant, -1)

    def _refuse(self, headers: dict[bytes, bytes], tenant: str) -> ZSEError | None:
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        allowed = self._origins | {f"http://{host}", f"https://{host}"}
        if origin and not {origin, ANY_ORIGIN} & allowed:
            return ForeignOriginError(
                f"Pages of {origin[:100]} may not open WebSockets here; --cors-origin allows one."
            )
        if self._open.total >= self._max_open:
            return OverloadedError(f"{self._open.total} WebSockets are open: all there may be.")
        if not self._open.has_share(tenant, 1, most=self._max_open):
            return OverloadedError(
                f"{self._open.held(tenant)} WebSockets of this key are open: the rest is of others."
            )
        return None


class _Paced:
    """Lets messages through at a bounded rate; who floods is cut off."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._num_left = MESSAGE_BURST
        self._counted_at = asyncio.get_running_loop().time()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return message
        now = asyncio.get_running_loop().time()
        gained = (now - self._counted_at) * MESSAGES_PER_SECOND
        self._num_left = min(MESSAGE_BURST, self._num_left + gained) - 1
        self._counted_at = now
        if self._num_left >= 0:
            return message
        reason = f"more than {MESSAGES_PER_SECOND:.0f} messages a second"
        await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION, "reason": reason}
