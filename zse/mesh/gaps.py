"""How irregularly somebody is heard of: who has more to do than processors says all of it late."""

from __future__ import annotations

_TIMES, _MOST_TIMES = 2.0, 1.4
"""How many times the longest gap of lately a silence may last, and the usual patience at most: what
a hanging node's clients wait for is this, and a second is the most that they are to wait."""
_HALVES_SECONDS = 30.0
"""After which half of a gap is remembered."""


class Gaps:
    """The longest silence of lately between two signs of life; what is long ago counts less."""

    def __init__(self) -> None:
        self._longest_seconds = 0.0

    def heard(self, gap_seconds: float) -> None:
        """Note a sign of life so long after the one before."""
        faded = self._longest_seconds * 0.5 ** (gap_seconds / _HALVES_SECONDS)
        self._longest_seconds = max(gap_seconds, faded)

    def patience(self, usual_seconds: float) -> float:
        """Return how long a silence may last before it means something: the usual time, or more."""
        wanted = max(usual_seconds, _TIMES * self._longest_seconds)
        return min(_MOST_TIMES * usual_seconds, wanted)
