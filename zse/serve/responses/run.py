"""A response while it is made: whole, as events, or in the background with nobody listening."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.answer_parts import Parts
from zse.serve.http.errors import describe
from zse.serve.http.event_log import EventLog
from zse.serve.http.streaming import log_failure, nobody, race
from zse.serve.responses.output import usage_of
from zse.serve.responses.writer import ResponseWriter
from zse.serve.turn import ChoiceEnded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from zse.serve.admission import Room
    from zse.serve.responses.output import Response
    from zse.serve.turn import Turn
    from zse.serve.uses import Uses

_ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseRun:
    """Makes one response, once.

    Args:
        turn: Whose answer it is.
        response: What is known of it; holds what has been made so far.
        is_summarized: Thoughts are shown as a summary.
        keep: Called when the response has ended, however it did.
    """

    def __init__(
        self,
        turn: Turn,
        response: Response,
        *,
        is_summarized: bool,
        keep: Callable[[], None],
    ) -> None:
        self.response = response
        self.log: EventLog | None = None
        """Its events, where it is made in the background and streamed."""
        self._turn = turn
        self._writer = ResponseWriter(response, is_summarized=is_summarized)
        self._keep = keep
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.response["status"] in _ENDED

    async def whole(self) -> Response:
        """Return the response when it has ended.

        Raises:
            ZSEError: As ``Turn.events``.
        """
        parts = Parts(shows_reasoning=True)
        async with aclosing(self._turn.events()) as events:
            async for event in events:
                for step in parts.push(event):
                    self._writer.add(step)
                if isinstance(event, ChoiceEnded):
                    self._end(event)
        return self.response

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of the response.

        Raises:
            ZSEError: As ``Turn.events``; ``failed`` makes the last event of it.
        """
        parts = Parts(shows_reasoning=True)
        has_begun = False
        async with aclosing(self._turn.events()) as events:
            async for event in events:
                if not has_begun:
                    has_begun = True
                    self.response["status"] = "in_progress"
                    yield self._writer.state("created")
                    yield self._writer.state("in_progress")
                for step in parts.push(event):
                    for frame in self._writer.step(step):
                        yield frame
                if isinstance(event, ChoiceEnded):
                    self._end(event)
        yield self._writer.state(self.response["status"])

    def failed(self, error: Exception) -> bytes:
        """End the response in an error, if it has not ended, and return the event that says so."""
        status, detail = describe(error)
        code = _CODES.get(status, "server_error")
        if not self.is_over:
            self._stop("failed", error={"code": code, "message": detail.message})
        return self._writer.state(self.response["status"])

    def start(
        self,
        terminate: asyncio.Event,
        room: Room,
        use: Uses,
        *,
        is_streamed: bool,
        forget: Callable[[], object],
    ) -> None:
        """Make the response in the background.

        Args:
            terminate: Ends it when it is set.
            room: What was taken for it.
            use: Begun for it, of its model.
            is_streamed: Whether its events are to be read.
            forget: Called when it has ended.
        """
        if is_streamed:
            self.log = EventLog()
        self._task = asyncio.create_task(self._make(terminate))
        # Also of a task that was cancelled before it began.
        self._task.add_done_callback(partial(self._ended, room, use, forget))

    def cancel(self) -> None:
        """Stop making the response, if that is still going on."""
        if not self.is_over:
            self._stop("cancelled")
        if self._task is not None:
            self._task.cancel()

    def _ended(
        self, room: Room, use: Uses, forget: Callable[[], object], _: asyncio.Task[None]
    ) -> None:
        room.abandon()
        use.end()
        if self.log is not None:
            self.log.end()
        forget()

    async def _make(self, terminate: asyncio.Event) -> None:
        if self.log is not None:
            await self.log.fill(self.frames(), terminate=terminate, failure=self.failed)
            return
        self.response["status"] = "in_progress"
        try:
            await race(self.whole(), nobody, terminate)
        except Exception as error:  # noqa: BLE001 - whoever asks for the response is told
            log_failure(error)
            self.failed(error)

    def _end(self, event: ChoiceEnded) -> None:
        if event.reason == "length":
            details = {"reason": "max_output_tokens"}
            self._stop("incomplete", incomplete_details=details)
        else:
            self._stop("completed", completed_at=int(time.time()))

    def _stop(self, status: str, **facts: Any) -> None:
        usage = usage_of(self._turn.usage())
        self.response.update(status=status, usage=usage, **facts)
        self._keep()
