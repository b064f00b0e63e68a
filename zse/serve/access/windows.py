"""What was used in the last minute, counted in one place: this process, or Redis.

The library's windows can only be filled. Tokens are charged before they are used and given back
after, so they are counted in its storage by the same rule: the minute before by the share of it
that is still in the window, and the current one.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from limits import RateLimitItemPerMinute
from limits.aio.strategies import MovingWindowRateLimiter

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from limits.aio.storage import Storage

    from zse.serve.access.caller import Caller

WINDOW_SECONDS = 60


@record
class Use:
    """How much of a limit is used."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until some of it is free again; 0 where all of it is."""


@record
class Charge:
    """Tokens that were taken in advance."""

    caller: Caller
    num_tokens: int
    window: int
    """The minute that they were taken from."""


class Windows:
    """The counters of all keys.

    Args:
        storage: Of the library.
        now: Unix seconds.
    """

    def __init__(self, storage: Storage, now: Callable[[], float]) -> None:
        self.storage = storage
        self._moving = MovingWindowRateLimiter(storage)
        self._now = now
        base = storage.base_exceptions
        self.errors: tuple[type[Exception], ...] = (
            *(base if isinstance(base, tuple) else (base,)),
            OSError,
        )
        """What it raises when it cannot be asked."""

    async def hit(self, caller: Caller) -> bool:
        item = RateLimitItemPerMinute(caller.requests_per_minute)
        return await self._moving.hit(item, *_names(caller))

    async def requests(self, caller: Caller) -> Use:
        item = RateLimitItemPerMinute(caller.requests_per_minute)
        stats = await self._moving.get_window_stats(item, *_names(caller))
        is_free = stats.remaining >= item.amount
        return Use(
            limit=item.amount,
            remaining=max(0, stats.remaining),
            # The library has this clock and no other.
            reset_seconds=0.0 if is_free else max(0.0, stats.reset_time - time.time()),
        )

    async def take(self, caller: Caller, num_tokens: int) -> Charge | None:
        window = self._window()
        current = await self._add(caller, window, num_tokens)
        if await self._before(caller) + current > caller.tokens_per_minute:
            await self._add(caller, window, -num_tokens)
            return None
        return Charge(caller=caller, num_tokens=num_tokens, window=window)

    async def correct(self, charge: Charge, difference: int) -> None:
        if charge.window >= self._window() - 1:
            await self._add(charge.caller, charge.window, difference)

    async def tokens(self, caller: Caller) -> Use:
        current = await self._count(caller, self._window())
        used = await self._before(caller) + current
        left = WINDOW_SECONDS - self._now() % WINDOW_SECONDS
        return Use(
            limit=caller.tokens_per_minute,
            remaining=max(0, caller.tokens_per_minute - math.ceil(used)),
            reset_seconds=left + (WINDOW_SECONDS if current else 0) if used else 0.0,
        )

    async def wait_seconds(self, caller: Caller, num_tokens: int) -> float:
        """Return after how long there is room, if nobody else comes."""
        room = caller.tokens_per_minute - num_tokens
        window, passed = self._window(), self._now() % WINDOW_SECONDS
        current, before = await self._count(caller, window), await self._count(caller, window - 1)
        left = WINDOW_SECONDS - passed
        if current <= room:  # the last minute need only be forgotten
            share = (room - current) / before if before else 1.0
            return max(left - share * WINDOW_SECONDS, 0.001)
        return left + (1 - room / current) * WINDOW_SECONDS

    async def _before(self, caller: Caller) -> float:
        """Return how much of the last minute counts still."""
        share = 1 - self._now() % WINDOW_SECONDS / WINDOW_SECONDS
        return await self._count(caller, self._window() - 1) * share

    def _window(self) -> int:
        return int(self._now() // WINDOW_SECONDS)

    async def _count(self, caller: Caller, window: int) -> int:
        return max(0, await self.storage.get(_key(caller, window)))

    async def _add(self, caller: Caller, window: int, num_tokens: int) -> int:
        return await self.storage.incr(_key(caller, window), 2 * WINDOW_SECONDS, num_tokens)


def _names(caller: Caller) -> tuple[str, str]:
    return caller.key_id, str(caller.limits_epoch)


def _key(caller: Caller, window: int) -> str:
    return "/".join(("zse", "tokens", *_names(caller), str(window)))
