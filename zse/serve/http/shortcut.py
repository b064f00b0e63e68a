"""The short way of a token: from the engine's thread to the socket, past the loop.

While whoever writes an answer has nothing to do but wait for its next token, the connection is lent
to the engine's thread: nothing is woken for a token. One lock says whose it is. The loop takes it
back before it does anything with the connection itself, and what a socket did not take is its, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from os import write as _write_to
from typing import TYPE_CHECKING

from zse.serve.http.framing import as_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.output import Delta
    from zse.serve.http.streaming import FrameSink


_COUNTED_TOGETHER = 32
"""Tokens that are told of at once: what counts them is then found in the caches."""
_MOST_BEGINNINGS = 64
"""Of a choice's chunks, by the length of the text: those of a token are short."""


class _TextForm:
    """What stands around a text in the chunks of one choice."""

    __slots__ = ("_before", "_length", "beginnings", "end")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._before = before
        self._length = len(before) + len(behind)
        self.beginnings: dict[int, bytes] = {}
        """By the length of the text, which the size of the chunk is made of."""
        self.end = behind + b"\r\n"

    def beginning(self, num_bytes: int) -> bytes:
        """Return what stands before a text of so many bytes, where it was never asked for."""
        made = b"%x\r\n%b" % (self._length + num_bytes, self._before)
        if len(self.beginnings) < _MOST_BEGINNINGS:
            self.beginnings[num_bytes] = made
        return made


class Shortcut:
    """Writes what one answer's deltas are to its client, while it is open.

    Most tokens add text and nothing else. Of these there are no deltas: what stands around the text
    in the frames of a choice is asked for once, and a token is its JSON text between the two. A
    token that comes after a sleep finds the caches cold, so what counts is how little it touches:
    this object, the form of its choice and a lock.

    Args:
        sink: Lends the connection.
        frames_of: Makes the frames of deltas, which the loop then does not; called by the engine's
            thread, and never while the loop makes frames of the same answer.
        around: Returns what stands before and behind the JSON text of a choice in a frame that
            adds text alone; None while there is no such frame. Called by the engine's thread, too.
        count: Told when tokens came that became no delta, some at once; likewise.
    """

    __slots__ = (
        *("_around", "_count", "_descriptor", "_forms", "_frames_of", "_lock", "_loop"),
        *("_num_left", "_plain", "_rest", "_sink", "_uncounted", "written_at"),
    )

    def __init__(
        self,
        sink: FrameSink,
        frames_of: Callable[[Sequence[Delta]], bytes],
        *,
        around: Callable[[int], tuple[bytes, bytes] | None] | None = None,
        count: Callable[[Sequence[float]], None] | None = None,
    ) -> None:
        self._sink = sink
        self._frames_of = frames_of
        self._around = around
        self._count = count
        self._plain: dict[int, _TextForm | None] = {}
        """Choices whose tokens may be texts, and what stands around them where that is known."""
        self._forms: dict[int, _TextForm] = {}
        """Of all choices that were asked for; of those that are plain, they are found there."""
        self._uncounted: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        """Of the socket; None while it is closed."""
        self._rest = b""
        """What was taken and is not written; while it is open, not for long."""
        self._num_left = 0
        """Deltas that went to the inbox."""
        self.written_at = 0.0
        """When something was taken last, on ``time.perf_counter``."""

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

    def count(self) -> None:
        """Tell of the tokens that came since the last time."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        """Tell of them; under the lock, as all that counts is."""
        uncounted, self._uncounted = self._uncounted, []
        if uncounted and self._count is not None:
            self._count(uncounted)

    # --- called by the engine's thread ----------------------------------------------------------

    def begin_texts(self, index: int) -> None:
        """Have tokens of a choice be texts from now on, where there is a form for it."""
        self._plain[index] = self._forms.get(index)

    def end_texts(self, index: int) -> None:
        """Have them be deltas again."""
        self._plain.pop(index, None)

    def take_text(self, index: int, text: bytes, now: float, *, at_once: bool) -> bool:
        """Make the chunk of a token of a choice that adds a JSON text, for ``write`` or written.

        False where it must be a delta. That closes nothing: the delta may be taken yet.
        """
        form = self._plain.get(index) or self._found_form(index)
        if form is None:
            return False
        num_bytes = len(text)
        chunk = (form.beginnings.get(num_bytes) or form.beginning(num_bytes)) + text + form.end
        self._lock.acquire()  # behind a sleep ``with`` takes 5 microseconds more
        try:
            if self._descriptor is None:
                return False
            self._rest += chunk
            self.written_at = now
            self._uncounted.append(now)
            if len(self._uncounted) >= _COUNTED_TOGETHER:
                self._tell()
            if at_once:
                self._write()
            return True
        finally:
            self._lock.release()

    def _found_form(self, index: int) -> _TextForm | None:
        if index not in self._plain or self._around is None or self._descriptor is None:
            return None
        around = self._around(index)
        if around is None:
            return None
        form = self._forms[index] = self._plain[index] = _TextForm(*around)
        return form

    def take(self, deltas: Sequence[Delta], *, has_time: bool) -> bool:
        """Make the frames of a step's deltas, for ``write``.

        False where they must go through the inbox. The end of a choice is told there: after it, and
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
                return False
            self._tell()
            if frames := self._frames_of(deltas):
                self._rest += as_chunk(frames)
                self.written_at = time.perf_counter()
            return True

    def write(self) -> None:
        """Write what was taken, unless the loop has taken it back."""
        with self._lock:
            if self._descriptor is not None and self._rest:
                self._write()

    def _write(self) -> None:
        """Write it, while this is open; under the lock."""
        assert self._descriptor is not None
        rest = self._rest
        try:
            num_written = _write_to(self._descriptor, rest)
        except OSError:  # full, or broken: the loop finds out which
            num_written = 0
        if num_written == len(rest):
            self._rest = b""
            return
        self._rest = rest[num_written:]
        self._descriptor = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads
            self._loop.call_soon_threadsafe(self._sink.take_back)
