"""Whose document is read next: one that is made for it takes its reader a gigabyte and a minute."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from zse.errors import OverloadedError
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AT_ONCE = 2
"""Of all keys; each may take a gigabyte of memory."""
MOST_WAITING = 64
"""Those that are read among them."""


class ReadingTurns:
    """Lets few documents be read at once, and of a key one after the other.

    So a key whose files each take all the time there is leaves the other place to others, and
    keeps them from waiting no more than it keeps itself.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._own: dict[str, asyncio.Lock] = {}
        self._waiting = Shares()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the turn of a caller, who is nobody where there are no keys.

        Raises:
            OverloadedError: As many wait as may, or as many of this caller's as leave others room.
        """
        waiting = self._waiting
        if waiting.total >= MOST_WAITING or not waiting.has_share(tenant, 1, most=MOST_WAITING):
            raise OverloadedError("Many documents wait to be read; try again in a moment.")
        waiting.take(tenant, 1)
        try:
            if not tenant:
                async with self._places:
                    yield
                return
            async with self._own.setdefault(tenant, asyncio.Lock()), self._places:
                yield
        finally:
            waiting.take(tenant, -1)
            if not waiting.held(tenant):
                self._own.pop(tenant, None)
