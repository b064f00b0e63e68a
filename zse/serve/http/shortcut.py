"""The short way of a token: from the engine's thread to the socket, past the loop.

While whoever writes an answer has nothing to do but wait for its next token, the connection is lent
to the engine's thread: nothing is woken for a token. One lock says whose it is. The loop takes it
back before it does anything with the connection itself, and what a socket did not take is its, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from zse.serve.http.framing import as_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.output import Delta
    from zse.serve.http.streaming import FrameSink


class Shortcut:
    """Writes what one answer's deltas are to its client, while it is open.

    Args:
        sink: Lends the connection.
        frames_of: Makes the frames of deltas, which the loop then does not; called by the engine's
            thread, and never while the loop makes frames of the same answer.
    """

    def __init__(self, sink: FrameSink, frames_of: Callable[[Sequence[Delta]], bytes]) -> None:
        self._sink = sink
        self._frames_of = frames_of
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        """Of the socket; None while it is closed."""
        self._rest = b""
        """What was taken and is not written; while it is open, not for long."""
        self._num_left = 0
        """Deltas that went to the inbox."""

    # --- called in the loop ---------------------------------------------------------------------

    def open(self, num_arrived: int) -> None:
        """Let the engine's thread write, where all that it left to the inbox has arrived there."""
        descriptor = self._sink.lend(self)
        with self._lock:
            if num_arrived == self._num_left:
                self._descriptor = descriptor

    def close(self) -> None:
        """Let it write no more; when this returns, it does not. Any thread may call it."""
        with self._lock:
            self._descriptor = None

    def settle(self) -> bytes:
        """Close it, and return what the socket has not taken."""
        with self._lock:
            self._descriptor = None
            rest, self._rest = self._rest, b""
            return rest

    # --- called by the engine's thread ----------------------------------------------------------

    def take(self, deltas: Sequence[Delta], *, has_time: bool) -> Callable[[], None] | None:
        """Make the frames of a step's deltas; return what writes them, which is to be called soon.

        None where they must go through the inbox. The end of a choice is told there: after it, and
        after all that goes there, it is closed.
        """
        with self._lock:
            is_open = has_time and self._descriptor is not None
            for delta in deltas:
                if delta.finish_reason is not None:
                    is_open = False
            if not is_open:
                self._descriptor = None
                self._num_left += len(deltas)
                return None
            if frames := self._frames_of(deltas):
                self._rest = as_chunk(frames)
            return self._write

    def _write(self) -> None:
        """Write what was taken, unless the loop has taken it back."""
        with self._lock:
            descriptor, rest = self._descriptor, self._rest
            if descriptor is None or not rest:
                return
            self._sink.written_at = time.monotonic()
            try:
                num_written = os.write(descriptor, rest)
            except OSError:  # full, or broken: the loop finds out which
                num_written = 0
            self._rest = rest[num_written:]
            if self._rest:
                self._descriptor = None
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads
                    self._loop.call_soon_threadsafe(self._sink.take_back)
