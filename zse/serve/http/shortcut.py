"""The fast path of a token: from the engine's thread straight to the socket, past the event loop.

While the task that writes an answer only waits for the next token, its connection is lent to the
engine's thread, which writes to the socket itself, or has the loop do so where answers are many: no
task is woken for a token. A lock says who has it. The loop takes the connection back before it
writes or closes, and with it the bytes that the socket did not accept.
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
"""Tokens that are counted in one go, so that the code for it is in the processor's caches."""
_MOST_BEGINNINGS = 64
"""Chunk headers that are kept for a choice, one for each length of text: tokens are short."""


class _TextForm:
    """The constant bytes around a text in the chunks of one choice."""

    __slots__ = ("_before", "_length", "beginnings", "end")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._before = before
        self._length = len(before) + len(behind)
        self.beginnings: dict[int, bytes] = {}
        """What comes before a text, by the text's length, which the chunk's size follows from."""
        self.end = behind + b"\r\n"

    def beginning(self, num_bytes: int) -> bytes:
        """Make, and keep, what comes before a text of so many bytes."""
        made = b"%x\r\n%b" % (self._length + num_bytes, self._before)
        if len(self.beginnings) < _MOST_BEGINNINGS:
            self.beginnings[num_bytes] = made
        return made


class Shortcut:
    """Writes the frames of one answer to its client, while it is open.

    Most tokens add text and nothing else. For these no delta is made: the bytes around the text of
    a choice's frames are asked for once, and a token is its JSON text between them. After the wait
    for a step the processor's caches are cold, so a token touches as little as it can: this object,
    the form of its choice and a lock.

    Args:
        sink: Lends the connection.
        frames_of: Makes the frames of deltas, which the loop then does not; called by the engine's
            thread, and never while the loop makes frames of the same answer.
        around: Returns what stands before and behind the JSON text of a choice in a frame that
            adds text alone; None while there is no such frame. Called by the engine's thread, too.
        count: Called with the times of tokens that became no delta, several at a time; likewise.
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
        """Choices whose tokens may be written as texts; with their form, once it is known."""
        self._forms: dict[int, _TextForm] = {}
        """The forms made so far, of all choices."""
        self._uncounted: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        """Of the socket; None while it is closed."""
        self._rest = b""
        """Bytes that were taken and not written yet."""
        self._num_left = 0
        """Deltas that went to the inbox."""
        self.written_at = 0.0
        """When something was taken last, on ``time.perf_counter``."""

    # --- called in the loop ---------------------------------------------------------------------

    def open(self, num_arrived: int) -> None:
        """Let the engine's thread write, if all deltas that it sent to the inbox have arrived."""
        descriptor = self._sink.lend(self)
        with self._lock:
            if num_arrived == self._num_left:
                self._descriptor = descriptor

    def close(self) -> None:
        """Stop the engine's thread from writing; it does not once this returns. In any thread."""
        with self._lock:
            self._descriptor = None

    def settle(self) -> bytes:
        """Close it, and return what the socket has not taken."""
        with self._lock:
            self._descriptor = None
            rest, self._rest = self._rest, b""
            return rest

    @property
    def has_texts(self) -> bool:
        """Whether tokens of some choice are taken as texts; in any thread."""
        return bool(self._plain)

    def count(self) -> None:
        """Count the tokens that came since the last time."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        """Count them; the lock is held, as for all counting."""
        uncounted, self._uncounted = self._uncounted, []
        if uncounted and self._count is not None:
            self._count(uncounted)

    # --- called by the engine's thread ----------------------------------------------------------

    def begin_texts(self, index: int) -> None:
        """Write tokens of a choice as texts from now on, where there is a form for it."""
        self._plain[index] = self._forms.get(index)

    def end_texts(self, index: int) -> None:
        """Make deltas of them again."""
        self._plain.pop(index, None)

    def take_text(self, index: int, text: bytes, now: float, *, at_once: bool) -> bool:
        """Take a token that adds a JSON text to a choice; it is written at once, or by ``write``.

        False where it must be a delta instead, which ``take`` may still accept.
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
        """Write what was taken, unless the loop has taken it back; in any thread."""
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
