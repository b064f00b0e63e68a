"""Lines that repeat are written so many times in a while, so that no client can fill a disk.

Lines are alike when they say the same with the same status; what differs in them, as paths do, is
written by the client. The first line of the next while says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

WINDOW_SECONDS = 10.0
MAX_REFUSALS = 50
"""Lines of one kind in a window that tell of requests that were refused, or of anything amiss."""
MAX_LINES = 5000
"""Other lines of one kind."""
_FIRST_REFUSAL = 400


class Throttle(logging.Filter):
    """Lets a bounded number of equal lines through."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._window_ends = 0.0
        self._seen: Counter[Hashable] = Counter()
        self._left_out: Counter[Hashable] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a line is written; the first of its kind learns of those that were not."""
        now = self._clock()
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            self._seen.clear()
        status = getattr(record, "status", 0)
        kind = (record.name, record.msg, status)
        self._seen[kind] += 1
        is_amiss = status >= _FIRST_REFUSAL or record.levelno >= logging.WARNING
        if self._seen[kind] > (MAX_REFUSALS if is_amiss else MAX_LINES):
            self._left_out[kind] += 1
            return False
        if num_left_out := self._left_out.pop(kind, 0):
            record.left_out = num_left_out
        return True
