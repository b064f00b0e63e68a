"""Streams in flight, and how what a step made for them reaches who reads it.

Text is made in the engine's thread, so that a stop string ends its choice before the next step
spends anything on it. A delta then goes past its inbox, where nobody need be woken for it, or with
all others of its loop in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from zse.engine.inbox import Inbox, UnreadBounds
from zse.engine.output import RequestText
from zse.engine.waking import Doorbell
from zse.errors import EngineError, ZSEError
from zse.text.lone import LoneTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.inbox import Shortcut
    from zse.engine.output import Delta
    from zse.engine.request import Request, TokenEvent
    from zse.engine.waking import Letter
    from zse.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_MOST_WITH_SHORTCUTS = 32
"""Answers in flight. So many take the engine's thread half a millisecond; more of them the loop
writes, which is woken once for all, while the next step is computed."""


class Stream:
    """A request in flight. Its inbox belongs to the loop, the text to the engine's thread."""

    __slots__ = ("doorbell", "inbox", "request", "shortcut", "text")

    def __init__(
        self,
        request: Request,
        text: RequestText,
        inbox: Inbox,
        doorbell: Doorbell,
        shortcut: Shortcut | None,
    ) -> None:
        self.request = request
        self.text = text
        self.inbox = inbox
        self.doorbell = doorbell
        """Of the inbox's loop."""
        self.shortcut = shortcut
        """The way past the inbox."""


def _ended(*_: object) -> None:
    """Stand in for an engine that is closed."""


class StreamsInFlight:
    """Takes the events of steps to the readers of streams.

    Args:
        tokenizer: Turns token ids into text.
        unread: How much may be made of answers that their callers do not take.
        abort: Ends a request, or one choice of it, now; called by the engine's thread.
        cancel: Has a request ended soon; called in any thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        unread: UnreadBounds,
        *,
        abort: Callable[[str, int | None], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._unread = unread
        self._abort = abort
        self._cancel = cancel
        self._lone = LoneTokens(tokenizer)
        self._streams: dict[str, Stream] = {}
        self._doorbells: dict[asyncio.AbstractEventLoop, Doorbell] = {}

    def __len__(self) -> int:
        return len(self._streams)

    # --- called in the loops ----------------------------------------------------------------------

    def make(
        self, request: Request, on_choice_end: Callable[[], None], shortcut: Shortcut | None
    ) -> Stream:
        """Return a stream for who reads in the running loop; nothing comes before it is added."""
        alternatives = request.params.logprobs
        inbox = Inbox(
            num_choices=request.params.n,
            tokens_each=1 if alternatives is None else 2 + alternatives,
            bounds=self._unread,
            others=self._inboxes,
            on_choice_end=on_choice_end,
            on_overflow=lambda: self._cancel(request.request_id),
            shortcut=shortcut,
            has_time=self._has_time_to_write,
        )
        doorbell = self._doorbell_of(asyncio.get_running_loop())
        text = RequestText(self._tokenizer, request)
        return Stream(request, text, inbox, doorbell, shortcut)

    def add(self, stream: Stream) -> None:
        self._streams[stream.request.request_id] = stream

    def remove(self, stream: Stream) -> None:
        """Bring a stream nothing more; its work, if it has not ended, is cancelled."""
        request_id = stream.request.request_id
        if self._streams.pop(request_id, None) is not None:
            self._cancel(request_id)

    def fail_all(self, make_error: Callable[[], ZSEError]) -> None:
        """End all streams with an error each; in any thread."""
        for stream in list(self._streams.values()):
            _fail(stream, make_error())
            self.remove(stream)

    def close(self) -> None:
        """Let go of the loops, behind what was brought to them, and of the engine; in any thread.

        Without a cycle, an engine's memory goes with it: no collector need be waited for.
        """
        self._abort = self._cancel = _ended
        doorbells, self._doorbells = self._doorbells, {}
        for doorbell in doorbells.values():
            doorbell.close()

    def _inboxes(self) -> list[Inbox]:
        return [stream.inbox for stream in list(self._streams.values())]

    def _doorbell_of(self, loop: asyncio.AbstractEventLoop) -> Doorbell:
        if loop not in self._doorbells:
            open_ones = [each for each in self._doorbells.items() if not each[0].is_closed()]
            self._doorbells = {**dict(open_ones), loop: Doorbell(loop)}
        return self._doorbells[loop]

    def _has_time_to_write(self) -> bool:
        """Whether the engine's thread can write what it makes."""
        return len(self._streams) <= _MOST_WITH_SHORTCUTS

    # --- called by the engine's thread ------------------------------------------------------------

    def deliver(self, events: list[TokenEvent]) -> None:
        """Bring what a step made to who reads it.

        What is written here is written at once in the end: a client of many streams wakes once.
        """
        now = time.perf_counter()
        has_time = self._has_time_to_write()
        writes: list[Callable[[], None]] = []
        made: dict[Stream, list[Delta]] = {}
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue  # cancelled while the step ran
            try:
                if has_time and stream not in made:  # what follows a delta is one
                    write = self._pass(stream, event, now)
                    if write is not None:
                        writes.append(write)
                        continue
                delta = stream.text.push(event)
            except Exception as error:  # one request's text must not take the others down
                logger.exception("request %s: its text could not be made", event.request_id)
                self._give_up(stream, error)
                continue
            if delta is None:
                continue
            if delta.finish_reason is not None and event.finish_reason is None:
                self._abort(event.request_id, event.index)  # a stop string
            made.setdefault(stream, []).append(delta)
        if made:
            self._bring(made, writes, has_time=has_time)
        for write in writes:
            write()

    def _pass(self, stream: Stream, event: TokenEvent, now: float) -> Callable[[], None] | None:
        """Have a token that is text by itself go past its inbox, and be no delta; if it can."""
        index, token_id, shortcut = event.index, event.token_id, stream.shortcut
        if shortcut is None or event.finish_reason is not None or index not in stream.text.plain:
            return None
        text = None if token_id is None else self._lone[token_id]
        return None if text is None else shortcut.take_text(index, text, now)

    def _bring(
        self,
        made: dict[Stream, list[Delta]],
        writes: list[Callable[[], None]],
        *,
        has_time: bool,
    ) -> None:
        """Have deltas go past the inboxes, adding what writes them, or put them there."""
        letters: dict[Doorbell, list[Letter]] = {}
        for stream, deltas in made.items():
            try:
                write = stream.inbox.offer(deltas, has_time=has_time)
            except Exception as error:  # one request's frames must not take the others down
                logger.exception("the frames of an answer could not be made")
                self._give_up(stream, error)
                continue
            if write is not None:
                writes.append(write)
            else:
                own = [(stream.inbox, delta) for delta in deltas]
                letters.setdefault(stream.doorbell, []).extend(own)
        for doorbell, batch in letters.items():
            self._ring(doorbell, batch)

    def _give_up(self, stream: Stream, error: Exception) -> None:
        self._abort(stream.request.request_id, None)
        _fail(stream, EngineError(f"the answer has no text: {type(error).__name__}: {error}"))

    def _ring(self, doorbell: Doorbell, letters: list[Letter]) -> None:
        try:
            doorbell.ring(letters)
        except RuntimeError:  # the loop is closed: nobody is left to read
            for stream in list(self._streams.values()):
                if stream.doorbell is doorbell:
                    self.remove(stream)


def _fail(stream: Stream, error: ZSEError) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
        stream.doorbell.ring([(stream.inbox, error)])
