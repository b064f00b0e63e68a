"""A request that this server asks itself, in the name and on the account of another one.

It meets no wrapper a second time: the one that it is part of has passed them, and its tokens are
charged and audited with that. What the caller may reach is asked again, for the path is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.access.caller import caller_of
from zse.serve.access.policy import ScopeError
from zse.serve.access.rules import scope_needed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message

    from zse.serve.mcp_server.offered import Inner

_KEPT = ("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "state")
"""Of the scope: not its headers, its route, nor what the connection offers to streams."""


async def ask_inside(request: Request, inner: Inner) -> tuple[int, Any]:
    """Return the status and the JSON of an answer; None where it is no JSON.

    Raises:
        ScopeError: The caller's key is not for this route.
    """
    needed = scope_needed(inner.path)
    if needed is not None and not caller_of(request.scope).may(needed):
        raise ScopeError(f"This tool asks for a key with the scope '{needed}'.")
    body = b"" if inner.body is None else msgspec.json.encode(inner.body)
    kept = {name: request.scope[name] for name in _KEPT if name in request.scope}
    scope = {
        **kept,
        "method": inner.method,
        "path": inner.path,
        "raw_path": inner.path.encode(),
        "query_string": b"",
        "headers": [
            (b"host", request.headers.get("host", "localhost").encode("latin-1")),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
    }
    scope["path"] = scope.get("root_path", "") + inner.path
    exchange = _Exchange(request, body)
    await request.app(scope, exchange.receive, exchange.send)
    return exchange.status, exchange.answer()


class _Exchange:
    """The body that goes in, and the answer that comes out."""

    def __init__(self, request: Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        self._pieces: list[bytes] = []
        self.status = 0

    async def receive(self) -> Message:
        """Return the body once; then whatever comes of the client, which is that it has left."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._request.receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._pieces.append(message.get("body", b""))

    def answer(self) -> Any:
        try:
            return msgspec.json.decode(b"".join(self._pieces))
        except msgspec.DecodeError:
            return None
