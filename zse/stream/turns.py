"""Short turns for the threads of a load, while another thread of the process computes.

A thread that comes back from the kernel waits until the one that runs Python gives its turn up,
which a busy one does after 5 ms: longer than a chunk takes to be read.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_SECONDS = 0.00005

_lock = threading.Lock()
_users = 0
_usual_seconds = 0.0


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Shorten the interpreter's switch interval until the last block has ended."""
    global _users, _usual_seconds  # noqa: PLW0603 - so is the interval: one for the process
    with _lock:
        _users += 1
        if _users == 1:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN_SECONDS, _usual_seconds))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setswitchinterval(_usual_seconds)
