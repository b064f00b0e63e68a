"""JSON that nobody called so: ``curl -d`` says of any body that it is a form.

The routes that generate read it as JSON, unless a browser sent it; so do those of FastAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from zse.serve.http.requests import is_undeclared

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_JSON = (b"content-type", b"application/json")


class DeclaredJSON:
    """Calls a body JSON where its sender, who is no web page, said nothing of it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_undeclared(Headers(raw=scope["headers"])):
            headers = [pair for pair in scope["headers"] if pair[0] != _JSON[0]]
            scope["headers"] = [*headers, _JSON]
        await self.app(scope, receive, send)
