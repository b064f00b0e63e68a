"""A bounded queue before what is slow and few may do at once; no key can have all of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from zse.errors import OverloadedError
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FairQueue:
    """Lets so many in at once, and only some of them for one key.

    What a key asks beyond its own places waits for these, not for those of others: one whose every
    request takes all the time there is leaves places free. Callers without a key are one and the
    same, and have all places.

    Args:
        at_once: How many are let in.
        each: How many of one key.
        most: How many there may be, those that wait among them.
    """

    def __init__(self, *, at_once: int, each: int, most: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._each = each
        self._most = most
        self._own: dict[str, asyncio.Semaphore] = {}
        """Places of the keys that have, or wait for, any."""
        self._there = Shares()

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place; ``tenant`` is whose it is, empty where there are no keys.

        Raises:
            OverloadedError: As many are there as may be, or as many of this caller's as leave
                others room.
        """
        there = self._there
        if there.total >= self._most or not there.has_share(tenant, 1, most=self._most):
            raise OverloadedError("Too many requests wait for the same; try again in a moment.")
        there.take(tenant, 1)
        try:
            if tenant:
                own = self._own.setdefault(tenant, asyncio.Semaphore(self._each))
                async with own, self._places:
                    yield
            else:
                async with self._places:
                    yield
        finally:
            there.take(tenant, -1)
            if not there.held(tenant):
                self._own.pop(tenant, None)
