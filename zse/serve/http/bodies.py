"""How much of a body is read: no more than its limit, whatever its length says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.http.errors import BodyTooLargeError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 32 << 20


class BoundedBody:
    """Refuses bodies that are too long, by their declared length or as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            await error_response(_too_large(), {"connection": "close"})(scope, receive, send)
            return
        await self.app(scope, _counted(receive), send)


def _counted(receive: Receive) -> Receive:
    """Count the bytes of a body that came without a length."""
    num_bytes = 0

    async def counted() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return counted


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.")
