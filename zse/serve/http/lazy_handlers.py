"""Handlers whose modules are imported by their first request.

What a plain chat does not need stays out of a start this way: a route names a module and a
handler in it, as text.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    Handler = Callable[[Request], Awaitable[ASGIApp]]


def imported(module: str, name: str) -> Callable[[], Any]:
    """Return a function that returns what a module calls ``name``, importing it when called."""
    return lambda: getattr(import_module(module), name)


class Late:
    """The endpoint of a route that stands for a handler in a module.

    Args:
        module: Its whole name.
        name: The handler's, which metrics also call the route.
    """

    def __init__(self, module: str, name: str) -> None:
        self.__name__ = name
        self._import = imported(module, name)
        self._handler: Handler | None = None

    async def load(self) -> Handler:
        """Return the handler, importing its module in a thread: streams go on meanwhile."""
        if self._handler is None:
            handler: Handler = await asyncio.to_thread(self._import)
            self._handler = handler
        return self._handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        handler = await self.load()
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)
