"""The events of one stream, numbered and kept, so that they can be read again from any of them.

One writes, any number read. What is kept is bounded: the oldest events go once every reader has
taken them, and a reader that is too slow for that holds the writer up. With no reader they just
go: whoever comes back too late is told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from zse.serve.http.errors import EventsGoneError
from zse.serve.http.streaming import log_failure, nobody, race

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

MAX_LOG_BYTES = 2 << 20


class EventLog:
    """Numbers events from 0."""

    def __init__(self, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._size_bytes = 0
        self._first = 0
        """Number of the oldest event that is kept."""
        self._taken: dict[object, int] = {}
        """The last event that each reader has."""
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self.is_over = False

    @property
    def last(self) -> int:
        """Number of the newest event; -1 before there is one."""
        return self._first + len(self._events) - 1

    @property
    def num_readers(self) -> int:
        return len(self._taken)

    async def append(self, event: bytes) -> None:
        """Add an event, waiting for readers where there is no room for it yet."""
        self._events.append(event)
        self._size_bytes += len(event)
        self._wake()
        while self._size_bytes > self._max_bytes and len(self._events) > 1:
            if min(self._taken.values(), default=self.last) < self._first:
                await self._change()
            else:
                self._size_bytes -= len(self._events.popleft())
                self._first += 1

    def end(self, failure: Exception | None = None) -> None:
        """Say that no more events come; ``failure`` is raised to readers that have read them.

        What is said first counts.
        """
        if not self.is_over:
            self.is_over, self._failure = True, failure
            self._wake()

    async def read(self, *, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events that follow one, as they come, until the log ends.

        Raises:
            EventsGoneError: The next one is not kept any more.
            Exception: What ended the log.
        """
        reader = object()
        self._taken[reader] = after
        try:
            while True:
                if after < self._first - 1:
                    raise EventsGoneError(
                        f"Events up to {self._first - 1} are gone; the request was for those "
                        f"after {after}."
                    )
                if after < self.last:
                    after += 1
                    self._taken[reader] = after
                    self._wake()
                    yield self._events[after - self._first]
                elif self.is_over:
                    if self._failure is not None:
                        raise self._failure
                    return
                else:
                    await self._change()
        finally:
            del self._taken[reader]
            self._wake()

    async def fill(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        terminate: asyncio.Event,
        failure: Callable[[Exception], bytes],
    ) -> None:
        """Write a stream until it ends, fails or the server must stop, whether or not it is read.

        Args:
            frames: Its events; closed in the end.
            terminate: Set when the server must stop.
            failure: Makes the last event of a stream that failed. Where it is the first, too,
                readers get the failure itself: an answer can still have its status.
        """
        try:
            await race(self._copy(frames), nobody, terminate)
        except Exception as error:  # noqa: BLE001 - its readers raise it, or read of it
            last = failure(error)
            if self.last < 0:
                self.end(error)
            else:
                log_failure(error)
                await self.append(last)
        finally:
            self.end()

    async def _copy(self, frames: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(frames):
            async for frame in frames:
                await self.append(frame)

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
