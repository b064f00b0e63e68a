"""Imports what people look at when somebody first asks for it: pages, and the FastAPI part.

FastAPI costs half a second of imports that would otherwise stand between a start and its first
token; nobody who waits for a token is waiting for the API's description.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from zse.serve.state import AppState

DESCRIBED_PATHS = ("/docs", "/openapi.json", "/version")


async def home(request: Request) -> Response:
    """Handle ``/``; its page is imported when somebody asks."""
    from zse.serve import pages

    return await pages.home(request)


class LazyAdmin:
    """An ASGI application that becomes the FastAPI one."""

    __name__ = "admin"

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, importing the application before the first answer."""
        self._state.require_model()
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._build)
        await self._app(scope, receive, send)

    def _build(self) -> ASGIApp:
        from zse.serve.admin import create_admin

        return create_admin(self._state)
