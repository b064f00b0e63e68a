"""Deltas that the engine has produced and the caller has not read yet.

The engine never waits for a caller, so an inbox grows where one reads too slowly: up to a bound, at
which the answer ends with an error and what was kept of it is dropped. The end of a choice is
reported (``on_choice_end``) when it arrives here, not when it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from zse.engine.waking import Waiter
from zse.errors import UnreadOutputError, ZSEError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zse.engine.output import Delta

_LOOK_EVERY = 256
"""Deltas between two looks at the bound."""


@record
class UnreadBounds:
    """Bounds on unread deltas, in tokens; each alternative of a log-probability counts as one."""

    each: int = 32768
    """Of one request."""
    together: int = 262144
    """Of all: a request may hold no more than what the others leave of it."""


class Shortcut(Protocol):
    """Takes deltas in the engine's thread, so that no task has to be woken for them."""

    def open(self, num_arrived: int) -> None:
        """Take deltas from now on, if all that were not taken have arrived: in the loop.

        Args:
            num_arrived: Deltas that have come to the inbox; others are still on their way there.
        """

    def close(self) -> None:
        """Take none any more; in any thread."""

    @property
    def has_texts(self) -> bool:
        """Whether tokens of some choice are taken as texts; in any thread."""

    def begin_texts(self, index: int) -> None:
        """Take tokens of a choice as texts from now on, where there is a form for it.

        In the engine's thread, as all that follows.
        """

    def end_texts(self, index: int) -> None:
        """Take them as deltas again."""

    def take_text(self, index: int, text: bytes, now: float, *, at_once: bool) -> bool:
        """Take a token of a choice that adds text and nothing else.

        Args:
            index: The choice.
            text: What it adds, as JSON text.
            now: When its step ended, on ``time.perf_counter``.
            at_once: Whether it is written here, as nothing else comes of its step.

        Returns:
            False where it must come as a delta, which the shortcut may yet take.
        """

    def take(self, deltas: Sequence[Delta], *, has_time: bool) -> bool:
        """Take the deltas of a step, for which the engine's thread may have no time.

        Returns:
            False where they, and what follows them, go through the inbox.
        """

    def write(self) -> None:
        """Write what was taken: behind all that a step made, whose streams it may be.

        By the loop, where the engine's thread has no time.
        """


class Inbox:
    """One caller's deltas, within one event loop.

    Args:
        num_choices: Choices that are still to end.
        tokens_each: What a delta counts, in tokens.
        bounds: How much may lie here.
        others: All that share the bound, this one included.
        on_choice_end: Called in the loop for each choice that the engine is done with.
        on_overflow: Called there when more would lie here than may.
        shortcut: The way past this inbox, open while its reader waits.
        has_time: Whether the engine's thread has time to make frames, and to write them.
    """

    def __init__(
        self,
        *,
        num_choices: int,
        tokens_each: int,
        bounds: UnreadBounds,
        others: Callable[[], Iterable[Inbox]],
        on_choice_end: Callable[[], None],
        on_overflow: Callable[[], None],
        shortcut: Shortcut | None = None,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._num_open = num_choices
        self._tokens_each = tokens_each
        self._bounds = bounds
        self._others = others
        self._on_choice_end = on_choice_end
        self._on_overflow = on_overflow
        self._error: ZSEError | None = None
        self._look_at = _LOOK_EVERY
        # One reader within one loop: half the cost of ``asyncio.Queue``.
        self._deltas: deque[Delta] = deque()
        self._waiter: Waiter | None = None
        self._shortcut = shortcut
        self._has_time = has_time
        self._num_arrived = 0

    @property
    def num_unread(self) -> int:
        """Tokens that nobody has taken yet, alternatives included."""
        return len(self._deltas) * self._tokens_each

    def close(self) -> None:
        """Let nothing go past this inbox until it has been read again."""
        if self._shortcut is not None:
            self._shortcut.close()

    def put(self, news: Delta | ZSEError) -> None:
        """Take what the engine made, or that it failed, for who is woken then."""
        if isinstance(news, ZSEError):
            self._fail(news)
            return
        self._num_arrived += 1
        if self._num_open == 0:
            return
        self._deltas.append(news)
        if news.finish_reason is not None:
            self._num_open -= 1
            self._on_choice_end()
        if len(self._deltas) >= self._look_at:
            self._look()

    def wake(self) -> None:
        """Let who waits here go on; the caller is the loop, and no task."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.wake()

    def _fail(self, error: ZSEError) -> None:
        """End all choices that have not ended; what came before can still be taken."""
        if self._num_open == 0:
            return
        self.close()
        self._error = error
        while self._num_open:
            self._num_open -= 1
            self._on_choice_end()

    async def get(self) -> Delta:
        """Return the next delta.

        Raises:
            ZSEError: There is none left, and the answer has failed.
        """
        while not self._deltas:
            if self._error is not None:
                raise self._error
            shortcut = self._shortcut
            if shortcut is not None and (shortcut.has_texts or self._has_time()):
                shortcut.open(self._num_arrived)
            self._waiter = Waiter(loop=self.loop)
            await self._waiter
        return self._deltas.popleft()

    def _look(self) -> None:
        """Fail where too much lies unread, here or everywhere."""
        rest = sum(inbox.num_unread for inbox in self._others()) - self.num_unread
        room = min(self._bounds.each, max(self._bounds.together - rest, 0))
        self._look_at = len(self._deltas) + _LOOK_EVERY
        if self.num_unread <= room:
            return
        error = UnreadOutputError(
            f"The client left {self.num_unread} tokens unread, more than the {room} there is "
            "room for: the answer was ended."
        )
        self._deltas.clear()
        self._fail(error)
        self._error = error  # also where the engine was done
        self._on_overflow()
