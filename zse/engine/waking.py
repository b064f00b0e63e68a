"""How a token wakes the task that waits for it from the engine's thread, at the least cost.

asyncio's own way (``call_soon_threadsafe``, then a future) costs a write to and two reads from a
socket pair, one turn of the loop for the call and another one for the task. Here an eventfd wakes
the loop, and the task goes on within its reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from zse.engine.inbox import Inbox, Shortcut
    from zse.engine.output import Delta
    from zse.errors import ZSEError

    Letter: TypeAlias = tuple[Inbox, Delta | ZSEError]


def _nothing() -> None:
    """Stand in for who wants to know when letters were read."""


class Doorbell:
    """Brings what an engine made, or that it failed, to the inboxes of one loop, in order.

    Args:
        loop: Of the inboxes' readers.
        answered: Called in the loop when readers have gone on with what was brought.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answered: Callable[[], None] = _nothing
    ) -> None:
        self._loop = loop
        self._answered = answered
        self._letters: deque[Sequence[Letter]] = deque()
        self._taken: deque[Sequence[Shortcut]] = deque()
        self._num_rung = self._num_answered = 0
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell).atexit = False  # a thread may still ring
        loop.add_reader(self._bell, self._answer)

    @property
    def is_answered(self) -> bool:
        """Whether readers have gone on with all that was rung for, as far as they got."""
        return self._num_answered == self._num_rung

    def ring(self, letters: Sequence[Letter], taken: Sequence[Shortcut] = ()) -> None:
        """Have letters brought in their order, and written what shortcuts have taken.

        Called by the engine's thread, at its end by any.

        Raises:
            RuntimeError: The loop is closed.
        """
        if self._loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._num_rung += 1
        self._letters.append(letters)
        self._taken.append(taken)
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Bring what was rung for, then listen no more; called in any thread."""
        with contextlib.suppress(RuntimeError):  # a closed loop listens to nothing
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        os.eventfd_write(self._bell, 1)  # nothing may have been rung for
        self._answer()
        self._loop.remove_reader(self._bell)  # which was what kept this, and the descriptor

    def _answer(self) -> None:
        """Fill all inboxes before anybody reads: a loop that is late writes what came in one."""
        os.eventfd_read(self._bell)
        num_rung = self._num_rung
        late: dict[Shortcut, None] = {}
        filled: dict[Inbox, None] = {}
        while self._letters:
            for inbox, news in self._letters.popleft():
                inbox.put(news)
                filled[inbox] = None
        while self._taken:
            late.update(dict.fromkeys(self._taken.popleft()))
        for shortcut in late:  # what was taken came before what lies in an inbox now
            shortcut.write()
        for inbox in filled:
            inbox.wake()
        self._num_answered = num_rung
        self._answered()


class Waiter(asyncio.Future[None]):
    """What one task waits for. The task goes on within ``wake``, not in the loop's next turn."""

    _step: tuple[Callable[[Any], object], Context | None] | None = None

    def add_done_callback(
        self, function: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Take the step of the task that waits; there is one."""
        self._step = function, context

    def wake(self) -> None:
        """Let the task go on, as far as it gets. The caller is the loop, and no task."""
        if self.done():
            return
        self.set_result(None)
        if self._step is not None:
            step, context = self._step
            (step(self) if context is None else context.run(step, self))

    def cancel(self, msg: Any | None = None) -> bool:
        """Give up waiting: the task goes on in the loop's next turn."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self._step is not None:
            step, context = self._step
            self.get_loop().call_soon(step, self, context=context)
        return is_cancelled
