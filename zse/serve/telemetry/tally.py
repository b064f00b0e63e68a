"""A histogram for what is noted with every token: two additions, where the library's takes locks.

One thread writes; whoever scrapes reads.
"""

from __future__ import annotations

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

    def note(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Return how many values lie at or below each bound, and in the end how many there are."""
        return list(accumulate(self._counts))
