"""Streams in flight, and how the tokens of a step reach their readers.

Text is made in the engine's thread, so that a stop string ends its choice before the next step
spends anything on it. A delta then goes past its inbox, where nobody need be woken for it, or with
all others of its loop in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, TypeAlias

from zse.engine.inbox import Inbox, UnreadBounds
from zse.engine.output import RequestText
from zse.engine.waking import Doorbell
from zse.errors import EngineError, ZSEError
from zse.text.lone import LoneTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.inbox import Shortcut
    from zse.engine.output import Delta
    from zse.engine.request import Request, TokenEvent
    from zse.engine.waking import Letter
    from zse.text.tokenizer import Tokenizer

    Taking: TypeAlias = tuple[Shortcut, Doorbell]

logger = logging.getLogger(__name__)

_MOST_WRITTEN = 32
"""Streams up to which the engine's thread writes tokens to their sockets itself: so many take it
half a millisecond. More are written by the event loop, which is woken once for all of them, while
the next step is computed. Texts go past inboxes and tasks there, too."""


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
        unread: Bounds on what is generated and not read by its caller.
        abort: Ends a request, or one choice of it, now; called by the engine's thread.
        cancel: Has a request ended soon; called in any thread.
        on_read: Called in a loop when its readers have gone on with what was delivered.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        unread: UnreadBounds,
        *,
        abort: Callable[[str, int | None], None],
        cancel: Callable[[str], None],
        on_read: Callable[[], None] = _ended,
    ) -> None:
        self._on_read = on_read
        self._tokenizer = tokenizer
        self._unread = unread
        self._abort = abort
        self._cancel = cancel
        self._lone = LoneTokens(tokenizer)
        self._streams: dict[str, Stream] = {}
        self._quick: dict[str, Taking] = {}
        """Shortcuts of streams that have one, by request, and who writes for them if need be."""
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
        request_id = stream.request.request_id
        self._streams[request_id] = stream
        if stream.shortcut is not None:
            self._quick[request_id] = stream.shortcut, stream.doorbell

    def remove(self, stream: Stream) -> None:
        """Deliver nothing more to a stream; its work, if it has not ended, is cancelled."""
        request_id = stream.request.request_id
        self._quick.pop(request_id, None)
        if self._streams.pop(request_id, None) is not None:
            self._cancel(request_id)

    def fail_all(self, make_error: Callable[[], ZSEError]) -> None:
        """End all streams with an error each; in any thread."""
        for stream in list(self._streams.values()):
            _fail(stream, make_error())
            self.remove(stream)

    def close(self) -> None:
        """Stop delivering, once what was sent has arrived; in any thread.

        Drops the references to the engine: in a cycle with it, its memory would stay until the
        garbage collector comes.
        """
        self._abort = self._cancel = self._on_read = _ended
        doorbells, self._doorbells = self._doorbells, {}
        for doorbell in doorbells.values():
            doorbell.close()

    def _inboxes(self) -> list[Inbox]:
        return [stream.inbox for stream in list(self._streams.values())]

    def _doorbell_of(self, loop: asyncio.AbstractEventLoop) -> Doorbell:
        if loop not in self._doorbells:
            open_ones = [each for each in self._doorbells.items() if not each[0].is_closed()]
            self._doorbells = {**dict(open_ones), loop: Doorbell(loop, self._on_read)}
        return self._doorbells[loop]

    def _has_time_to_write(self) -> bool:
        """Whether the engine's thread can write what it makes."""
        return len(self._streams) <= _MOST_WRITTEN

    # --- called by the engine's thread ------------------------------------------------------------

    def are_unread(self) -> bool:
        """Whether readers have yet to go on with what was delivered: loops are busy with it."""
        return not all(doorbell.is_answered for doorbell in self._doorbells.values())

    def deliver(self, events: list[TokenEvent]) -> None:
        """Hand the events of a step to their readers.

        What is written here is written in one go at the end, so that a client with many streams is
        woken once. The processor's caches are cold after the wait for the step: what an ordinary
        token touches is kept to this loop.
        """
        now = time.perf_counter()
        is_alone = len(events) == 1
        quick, lone = self._quick, self._lone
        taking: list[Taking] = []
        made: dict[Stream, list[Delta]] = {}
        for event in events:
            way = quick.get(event.request_id)
            try:
                if (
                    way is not None
                    and event.finish_reason is None
                    and (text := lone[event.token_id]) is not None  # type: ignore[index]
                    and way[0].take_text(event.index, text, now, at_once=is_alone)
                ):
                    if not is_alone:
                        taking.append(way)
                else:
                    self._make(event, made)
            except Exception as error:  # one request's text must not take the others down
                logger.exception("request %s: its text could not be made", event.request_id)
                self._give_up(event.request_id, error)
        has_time = self._has_time_to_write()
        if made:
            self._bring(made, taking, has_time=has_time)
        if has_time:
            for shortcut, _ in taking:
                shortcut.write()
        else:
            self._have_written(taking)

    def _make(self, event: TokenEvent, made: dict[Stream, list[Delta]]) -> None:
        """Make the delta of a token, if it shows anything; what follows it is one, too."""
        stream = self._streams.get(event.request_id)
        if stream is None:
            return  # cancelled while the step ran
        if stream.shortcut is not None:
            stream.shortcut.end_texts(event.index)
        delta = stream.text.push(event)
        if delta is None:
            return
        if delta.finish_reason is not None and event.finish_reason is None:
            self._abort(event.request_id, event.index)  # a stop string
        made.setdefault(stream, []).append(delta)

    def _bring(
        self, made: dict[Stream, list[Delta]], taking: list[Taking], *, has_time: bool
    ) -> None:
        """Hand deltas to their streams' shortcuts, adding these to ``taking``, or to inboxes."""
        letters: dict[Doorbell, list[Letter]] = {}
        for stream, deltas in made.items():
            shortcut = stream.shortcut
            try:
                is_taken = shortcut is not None and shortcut.take(deltas, has_time=has_time)
            except Exception as error:  # one request's frames must not take the others down
                logger.exception("the frames of an answer could not be made")
                self._give_up(stream.request.request_id, error)
                continue
            if not is_taken:
                own = [(stream.inbox, delta) for delta in deltas]
                letters.setdefault(stream.doorbell, []).extend(own)
            if shortcut is None:
                continue
            if is_taken:
                taking.append((shortcut, stream.doorbell))
            for delta in deltas:
                if delta.index in stream.text.plain:
                    shortcut.begin_texts(delta.index)
        for doorbell, batch in letters.items():
            self._ring(doorbell, batch)

    def _have_written(self, taking: list[Taking]) -> None:
        """Have loops write what was taken, each what is of its streams."""
        shortcuts: dict[Doorbell, list[Shortcut]] = {}
        for shortcut, doorbell in taking:
            shortcuts.setdefault(doorbell, []).append(shortcut)
        for doorbell, batch in shortcuts.items():
            self._ring(doorbell, taken=batch)

    def _give_up(self, request_id: str, error: Exception) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        self._abort(request_id, None)
        _fail(stream, EngineError(f"the answer has no text: {type(error).__name__}: {error}"))

    def _ring(
        self, doorbell: Doorbell, letters: Sequence[Letter] = (), taken: Sequence[Shortcut] = ()
    ) -> None:
        try:
            doorbell.ring(letters, taken)
        except RuntimeError:  # the loop is closed: nobody is left to read
            for stream in list(self._streams.values()):
                if stream.doorbell is doorbell:
                    self.remove(stream)


def _fail(stream: Stream, error: ZSEError) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
        stream.doorbell.ring([(stream.inbox, error)])
