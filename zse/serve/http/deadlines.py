"""When a request must be answered: what its client asks for, within what the server allows."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from zse.serve.http.errors import BadRequestError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from zse.serve.state import AppState

HEADER = "X-Request-Timeout"


class Deadlines:
    """Puts ``deadline`` (on the loop's clock, or None) into the scope's state."""

    def __init__(self, app: ASGIApp, *, state: AppState) -> None:
        self.app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        asked = dict(scope["headers"]).get(b"x-request-timeout") if is_http else None
        try:
            seconds = seconds_allowed(asked, self._state.options.max_request_seconds)
        except BadRequestError as error:
            await error_response(error)(scope, receive, send)
            return
        now = asyncio.get_running_loop().time()
        scope["state"]["deadline"] = None if seconds is None else now + seconds
        await self.app(scope, receive, send)


def seconds_allowed(asked: bytes | None, most: float) -> float | None:
    """Return how long a request may take; None is without an end.

    Args:
        asked: What its header says.
        most: The longest for any request; 0 is without an end.

    Raises:
        BadRequestError: The header is not a number above 0.
    """
    if asked is None:
        return most or None
    try:
        seconds = float(asked[:32])
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadRequestError(
            f"'{HEADER}' is {asked[:40].decode('latin-1')!r}, expected seconds above 0.",
            param=HEADER,
        )
    return min(seconds, most) if most else seconds
