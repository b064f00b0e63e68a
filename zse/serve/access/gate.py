"""The gate: says of every request who calls, before anything behind it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.access.caller import ANYBODY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Gate:
    """Puts the caller into ``scope["state"]["caller"]``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["caller"] = ANYBODY
        await self.app(scope, receive, send)
