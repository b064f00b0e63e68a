"""Short turns for threads that others wait for, while another thread of the process computes.

A thread that comes back from the kernel, or from a driver, waits until the one that runs Python
gives its turn up, which a busy one does after 5 ms: longer than a chunk takes to be read, and as
often as a thread asks a driver something.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_SECONDS = 0.00005
START_TURN_SECONDS = 0.0002
"""While a model is opened: a few threads take turns, whose changes cost what they spare below."""

_lock = threading.Lock()
_asked: list[float] = []
_usual: list[float] = []
"""What the interpreter had before anybody asked: one number, or none."""


def begin_turns(seconds: float) -> None:
    """Shorten the interpreter's switch interval until ``end_turns`` is called with the same."""
    with _lock:
        if not _asked:
            _usual[:] = [sys.getswitchinterval()]
        _asked.append(seconds)
        sys.setswitchinterval(min(*_asked, *_usual))


def end_turns(seconds: float) -> None:
    """Undo ``begin_turns``; the interval is the shortest that others still ask for."""
    with _lock:
        _asked.remove(seconds)
        sys.setswitchinterval(min(*_asked, *_usual) if _asked else _usual[0])


@contextlib.contextmanager
def short_turns(seconds: float = TURN_SECONDS) -> Iterator[None]:
    """Shorten the interpreter's switch interval until the last block has ended."""
    begin_turns(seconds)
    try:
        yield
    finally:
        end_turns(seconds)
