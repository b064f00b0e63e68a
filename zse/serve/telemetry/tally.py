"""A histogram for what comes with every token: noted a handful at a time, under one lock.

The library's takes several locks for each. Loops and engines' threads write; whoever scrapes reads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Tally:
    """Counts values by bounds.

    Args:
        bounds: Upper bounds, each with what equals it, in order; what is above all counts too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)
        self._lock = threading.Lock()

    def note(self, values: Sequence[float]) -> None:
        places = [bisect_left(self.bounds, value) for value in values]
        with self._lock:
            for place in places:
                self._counts[place] += 1
            self.sum += sum(values)

    def cumulative(self) -> list[int]:
        """Return how many values lie at or below each bound, and in the end how many there are."""
        return list(accumulate(self._counts))
