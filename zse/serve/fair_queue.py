"""A bounded queue before what is slow and few may do at once; no key can have all of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from zse.errors import OverloadedError
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


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

    async def run(self, tenant: str, start: Callable[[], asyncio.Future[Result]]) -> Result:
        """Wait for a place, start some work there and return its result.

        The place is taken until the work has ended. A caller that is cancelled stops waiting, which
        no thread and no process notices: were its place free then, a key that hangs up on each
        request could have all threads busy.

        Args:
            tenant: Whose it is; empty where there are no keys.
            start: Called when there is a place.

        Raises:
            OverloadedError: As many are there as may be, or as many of this caller's as leave
                others room.
        """
        with ExitStack() as place:
            await self._enter(tenant, place)
            work = start()
            held = place.pop_all()
        work.add_done_callback(lambda _: held.close())
        return await asyncio.shield(work)

    async def _enter(self, tenant: str, place: ExitStack) -> None:
        """Wait for a place; closing ``place`` gives back whatever was taken so far."""
        if self._there.total >= self._most or not self._there.has_share(tenant, 1, most=self._most):
            raise OverloadedError("Too many requests wait for the same; try again in a moment.")
        self._there.take(tenant, 1)
        place.callback(self._leave, tenant)
        own = self._own.setdefault(tenant, asyncio.Semaphore(self._each)) if tenant else None
        for places in (own, self._places):
            if places is not None:
                await places.acquire()
                place.callback(places.release)

    def _leave(self, tenant: str) -> None:
        self._there.take(tenant, -1)
        if not self._there.held(tenant):
            self._own.pop(tenant, None)
