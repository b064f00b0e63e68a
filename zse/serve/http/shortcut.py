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

    # --- called in the loop ---------------------------------------------------------------------

    def open(self, may_open: Callable[[], bool]) -> None:
        """Let the engine's thread write, where ``may_open`` says that nothing is under way."""
        descriptor = self._sink.lend(self)
        with self._lock:
            if may_open():
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

    def take(self, deltas: Sequence[Delta]) -> bool:
        """Write the deltas of a step; False where they must go through the inbox.

        The end of a choice is told there: after it, and after all that goes there, it is closed.
        """
        with self._lock:
            descriptor = self._descriptor
            if descriptor is None:
                return False
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._descriptor = None
                    return False
            frames = self._frames_of(deltas)
            if frames:
                self._write(descriptor, as_chunk(frames))
            return True

    def _write(self, descriptor: int, data: bytes) -> None:
        self._sink.written_at = time.monotonic()
        try:
            num_written = os.write(descriptor, data)
        except OSError:  # full, or broken: the loop finds out which
            num_written = 0
        if num_written < len(data):
            self._descriptor = None
            self._rest = data[num_written:]
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
                self._loop.call_soon_threadsafe(self._sink.take_back)
