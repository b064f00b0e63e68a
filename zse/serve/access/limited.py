"""Limits around every route: counts a limited key's requests, and says what it has left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.errors import ZSEError
    from zse.serve.access.account import Account
    from zse.serve.access.limits import Limits
    from zse.serve.access.policy import Access
    from zse.serve.access.windows import Use

_STARTS = frozenset({"http.response.start", "websocket.accept"})


class Limited:
    """Answers 429 where a key has used its minute. It stands inside the gate.

    Args:
        access: Counts.
        refuse: Makes an error an answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        refuse: Callable[[ZSEError, Mapping[str, str]], ASGIApp],
    ) -> None:
        self.app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        account: Account = scope["state"]["account"]
        if not account.caller.is_limited:
            await self.app(scope, receive, send)
            return
        limits = account.limits = await self._access.limits()
        send = _telling(limits, account, send)
        from zse.serve.access.limits import RateLimitError

        try:
            await limits.admit(account.caller)
        except RateLimitError as error:
            if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
                await self._refuse(error, {})(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)


def _telling(limits: Limits, account: Account, send: Send) -> Send:
    """Add what the key has left to what begins an answer."""

    async def telling(message: Message) -> None:
        if message["type"] in _STARTS:
            uses = await limits.use_of(account.caller)
            message["headers"] = [*message.get("headers", ()), *_headers(uses)]
        await send(message)

    return telling


def _headers(uses: Mapping[str, Use]) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's headers for both limits, and the usual ones for requests."""
    found: dict[str, object] = {}
    for kind, use in uses.items():
        found[f"x-ratelimit-limit-{kind}"] = use.limit
        found[f"x-ratelimit-remaining-{kind}"] = use.remaining
        found[f"x-ratelimit-reset-{kind}"] = _span(use.reset_seconds)
    if (requests := uses.get("requests")) is not None:
        found["x-ratelimit-limit"] = requests.limit
        found["x-ratelimit-remaining"] = requests.remaining
        found["x-ratelimit-reset"] = math.ceil(requests.reset_seconds)
    return [(name.encode(), str(value).encode()) for name, value in found.items()]


def _span(seconds: float) -> str:
    """Return a time as OpenAI writes it: ``250ms``, ``12s``, ``1m30s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
