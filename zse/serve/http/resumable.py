"""Streams that go on while their client is away.

A request with the header ``x-zse-resumable: 1`` gets events with ids, and ``x-zse-stream-id``. A
stream that nobody reads for ``--resume-seconds`` is given up and forgotten.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from zse.errors import OverloadedError
from zse.serve.access.caller import caller_of
from zse.serve.http.errors import UnknownIdError, error_frame
from zse.serve.http.event_log import EventLog
from zse.serve.shares import is_within_share

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.types import Scope

    from zse.serve.state import AppState


class Resumable:
    """One stream and the task that keeps it going.

    Args:
        task: Writes the log.
        away_seconds: How long that goes on, and the events are kept, with nobody listening.
        forget: Called when it is given up.
    """

    def __init__(
        self,
        log: EventLog,
        task: asyncio.Task[None],
        *,
        away_seconds: float,
        forget: Callable[[], object],
    ) -> None:
        self.log = log
        self._task = task
        self._away_seconds = away_seconds
        self._forget = forget
        self._timer = self._start_timer()

    async def events(self, *, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events behind a number, each with its id.

        Raises:
            EventsGoneError: As ``EventLog.read``.
            Exception: What the stream ended in before its first event.
        """
        self._timer.cancel()
        number = after
        try:
            async with aclosing(self.log.read(after=after)) as events:
                async for event in events:
                    number += 1
                    yield b"id: %d\n%s" % (number, event)
        finally:
            if not self.log.num_readers:
                self._timer = self._start_timer()

    def give_up(self) -> None:
        """Stop the work, if there is any left, and forget the stream."""
        self._timer.cancel()
        self._task.cancel()
        self.log.end()  # also where the task had not begun
        self._forget()

    def _start_timer(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._away_seconds, self.give_up)


class ResumableStreams:
    """Every stream that may be resumed, by its caller and its id."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._streams: dict[tuple[str, str], Resumable] = {}

    def add(
        self,
        scope: Scope,
        stream_id: str,
        frames: AsyncGenerator[bytes, None],
        *,
        failure: Callable[[Exception], bytes] | None = None,
    ) -> Resumable:
        """Keep the stream that answers a request going; ``failure`` is as in ``EventStream``.

        Raises:
            OverloadedError: As many as are kept are being written or read, or as many of this
                caller's as leave others room.
        """
        tenant = caller_of(scope).tenant
        self._make_room(tenant)
        key = (tenant, stream_id)
        log = EventLog()
        work = log.fill(
            frames,
            terminate=self._state.terminate,
            failure=failure or partial(error_frame, scope=scope),
        )
        self._streams[key] = Resumable(
            log,
            asyncio.create_task(work),
            away_seconds=self._state.options.resume_seconds,
            forget=partial(self._streams.pop, key, None),
        )
        return self._streams[key]

    def get(self, tenant: str, stream_id: str) -> Resumable:
        """Return a stream of a caller.

        Raises:
            UnknownIdError: The caller has none with this id, or has it no longer.
        """
        try:
            return self._streams[tenant, stream_id]
        except KeyError:
            raise UnknownIdError("stream", stream_id) from None

    def _make_room(self, tenant: str) -> None:
        limit = self._state.options.resumable_streams
        for stream in list(self._streams.values()):
            if len(self._streams) < limit:
                break
            if stream.log.is_over and not stream.log.num_readers:
                stream.give_up()
        num_own = sum(owner == tenant for owner, _ in self._streams)
        has_share = is_within_share(num_own + 1, free=limit - len(self._streams) - 1)
        if len(self._streams) >= limit or (tenant and not has_share):
            raise OverloadedError(
                f"This server keeps {limit} streams that can be resumed, and all of them are in "
                "use. Ask without 'x-zse-resumable', or later."
            )
