"""How often guesses stood: counts that forget, of all sequences and of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEPT = 0.97
"""Part of a count that is left after the next guess: some thirty count."""
_PRIOR_GUESSES = 6.0
"""Guesses that the rate of all sequences weighs as much as, in that of one."""


class Tally:
    """Rates at which guesses stand, by their grade.

    Args:
        rates: Of each grade, what is believed before anything is known.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        self._right = [rate * _PRIOR_GUESSES for rate in rates]
        self._all = [_PRIOR_GUESSES for _ in rates]

    def count(self, grade: int, num_guesses: float, num_right: float) -> None:
        """Note guesses, of which so many stood. Parts of guesses are beliefs."""
        kept = _KEPT**num_guesses
        self._right[grade] = self._right[grade] * kept + num_right
        self._all[grade] = self._all[grade] * kept + num_guesses

    def rate(self, grade: int) -> float:
        return self._right[grade] / self._all[grade]

    def begin(self) -> Tally:
        """Return the tally of one more sequence, which begins with what is known of all."""
        return Tally([self.rate(grade) for grade in range(len(self._all))])
