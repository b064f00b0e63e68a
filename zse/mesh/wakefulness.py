"""Whether this process has run: what was not heard while it did not is nobody else's silence.

A machine with more to do than processors lets a process stand for tenths of a second; one that was
suspended, for hours. Who wakes up finds everybody silent for as long, and answers not read yet. How
late its looks were lately is what a process knows of its own health, and tells others, so that they
wait for it somewhat longer ("local health", Dadgar, Phillips and Currey, 2017).
"""

from __future__ import annotations

_HALVES_SECONDS = 5.0
"""After which half of a lateness is remembered."""


class Wakefulness:
    """Told of each look of a thread that looks again and again.

    Args:
        usual_seconds: Between two looks, where nothing keeps the thread from running.
        most_seconds: The same; more is sleep.
    """

    def __init__(self, usual_seconds: float, most_seconds: float) -> None:
        self._usual_seconds, self._most_seconds = usual_seconds, most_seconds
        self._looked: float | None = None
        self._late_seconds = 0.0
        self.since = 0.0
        """When the last sleep ended."""

    def look(self, now: float) -> float:
        """Note a look; return the seconds that were slept through before it, most often 0."""
        between = 0.0 if self._looked is None else now - self._looked
        self._late_seconds = self.late_seconds(now)
        self._looked = now
        if between <= self._most_seconds:
            return 0.0
        self.since = now
        return between

    def is_asleep(self, now: float) -> bool:
        """Whether the next look is overdue: this process has just begun to run again."""
        return self._looked is not None and now - self._looked > self._most_seconds

    def late_seconds(self, now: float) -> float:
        """Return by how much the latest look of lately was late; what is long ago counts less."""
        if self._looked is None:
            return 0.0
        between = now - self._looked
        faded: float = self._late_seconds * 0.5 ** (between / _HALVES_SECONDS)
        return max(between - self._usual_seconds, faded)
