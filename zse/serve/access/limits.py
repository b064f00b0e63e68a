"""Sliding-window limits: requests and tokens of a key in any minute.

Counting is the ``limits`` library's, in memory or in Redis, which replicas share. Imported with the
first request of a limited key. A Redis that does not answer takes nobody's service away: until it
does, each replica counts for itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from limits.aio.storage import MemoryStorage, RedisStorage
from limits.storage import storage_from_string

from zse.errors import ZSEError
from zse.serve.access.windows import WINDOW_SECONDS, Windows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from limits.aio.storage import Storage

    from zse.serve.access.caller import Caller
    from zse.serve.access.windows import Charge, Use

LOG = logging.getLogger("zse.serve")
Answer = TypeVar("Answer")
REDIS_SECONDS = 0.5
"""How long Redis may take; a request waits for it."""
RETRY_SECONDS = 5.0
"""Until a Redis that did not answer is asked again."""


class RateLimitError(ZSEError):
    """A key has used what it may in a minute.

    Args:
        message: What it may use, what it has used, and when there is more.
        kind: ``requests`` or ``tokens``: what OpenAI calls the type of such an error.
        retry_after_seconds: When there is room, if nobody else comes.
    """

    http_status = 429
    error_code = "rate_limit_exceeded"
    kind = "rate_limit_error"

    def __init__(self, message: str, kind: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_seconds = retry_after_seconds

    @property
    def error_type(self) -> str:
        return self.kind


class Limits:
    """The limits of all keys.

    Args:
        url: ``redis://HOST:PORT/DB``; empty counts in this process.
        now: Unix seconds.
    """

    def __init__(self, url: str = "", *, now: Callable[[], float] = time.time) -> None:
        self._own = Windows(MemoryStorage(), now)
        self._shared = Windows(_storage_of(url), now) if url else self._own
        self._errors = self._shared.errors
        self._down_until = 0.0
        self._settling: set[asyncio.Task[None]] = set()

    async def admit(self, caller: Caller) -> None:
        """Count a request.

        Raises:
            RateLimitError: The minute has no room for it.
        """
        limit = caller.requests_per_minute
        if not limit or await self._ask(lambda windows: windows.hit(caller)):
            return
        use = await self._ask(lambda windows: windows.requests(caller))
        raise RateLimitError(
            f"Rate limit exceeded. Limit: {limit}/min, Current: {limit - use.remaining}. "
            f"Try again in {math.ceil(use.reset_seconds)}s.",
            "requests",
            max(use.reset_seconds, 0.001),
        )

    async def charge(
        self, caller: Caller, *, prompt_tokens: int, most_tokens: int
    ) -> Charge | None:
        """Take the tokens that a piece of work may use, as far as there is a limit.

        Who may use no more than a part of what was asked for is charged the whole limit: what is
        too much is known only when it has been used.

        Raises:
            RateLimitError: The minute has no room for them.
        """
        limit = caller.tokens_per_minute
        if not limit:
            return None
        if prompt_tokens > limit:
            raise RateLimitError(
                f"Rate limit exceeded. The prompt has {prompt_tokens} tokens, the key may use "
                f"{limit} in a minute.",
                "tokens",
                WINDOW_SECONDS,
            )
        asked = min(most_tokens, limit)
        charge = await self._ask(lambda windows: windows.take(caller, asked))
        if charge is not None:
            return charge
        use = await self._ask(lambda windows: windows.tokens(caller))
        wait = await self._ask(lambda windows: windows.wait_seconds(caller, asked))
        raise RateLimitError(
            f"Rate limit exceeded. Limit: {limit} tokens/min, Current: {limit - use.remaining}, "
            f"asked for: {asked}. Try again in {math.ceil(wait)}s.",
            "tokens",
            wait,
        )

    def settle(self, charge: Charge, used_tokens: int) -> None:
        """Give back what was charged and not used, or take what was used beyond it."""
        difference = used_tokens - charge.num_tokens
        if difference:
            # Work ends while its task is being cancelled: this goes on by itself.
            give = self._ask(lambda windows: windows.correct(charge, difference))
            task = asyncio.ensure_future(give)
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def use_of(self, caller: Caller) -> dict[str, Use]:
        """Return what a caller has used: of ``requests`` and of ``tokens``, where limited."""
        found = {}
        if caller.requests_per_minute:
            found["requests"] = await self._ask(lambda windows: windows.requests(caller))
        if caller.tokens_per_minute:
            found["tokens"] = await self._ask(lambda windows: windows.tokens(caller))
        return found

    async def close(self) -> None:
        """Let what is being given back arrive, and leave Redis."""
        await asyncio.gather(*self._settling, return_exceptions=True)
        if isinstance(self._shared.storage, RedisStorage):
            bridge: Any = self._shared.storage.bridge
            await bridge.get_connection().aclose()

    async def _ask(self, ask: Callable[[Windows], Awaitable[Answer]]) -> Answer:
        if self._shared is not self._own and time.monotonic() >= self._down_until:
            try:
                return await ask(self._shared)
            except self._errors as error:
                self._down_until = time.monotonic() + RETRY_SECONDS
                LOG.warning(
                    "limits are counted by this server alone: Redis does not answer",
                    extra={"error": str(error)[:200]},
                )
        return await ask(self._own)


def _storage_of(url: str) -> Storage:
    scheme = url.replace("unix://", "redis+unix://", 1)
    timeouts = {"socket_timeout": REDIS_SECONDS, "socket_connect_timeout": REDIS_SECONDS}
    made = storage_from_string(f"async+{scheme}", implementation="redispy", **timeouts)
    return cast("Storage", made)
