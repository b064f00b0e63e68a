"""Whether this process has run: what was not heard while it did not is nobody else's silence.

A machine with more to do than processors lets a process stand for tenths of a second; one that was
suspended, for hours. Who wakes up finds everybody silent for as long, and answers not read yet.
"""

from __future__ import annotations


class Wakefulness:
    """Told of each look of a thread that looks again and again.

    Args:
        most_seconds: Between two looks; more is sleep.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._looked: float | None = None
        self.since = 0.0
        """When the last sleep ended."""

    def look(self, now: float) -> float:
        """Note a look; return the seconds that were slept through before it, most often 0."""
        between = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if between <= self._most_seconds:
            return 0.0
        self.since = now
        return between

    def is_asleep(self, now: float) -> bool:
        """Whether the next look is overdue: this process has just begun to run again."""
        return self._looked is not None and now - self._looked > self._most_seconds
