"""What steps cost, as measured, and how many drafts are worth it.

A step that checks drafts has more rows than one that checks none, and a device answers in its own
way to that: a GPU reads the same weights for one row as for eight, a processor computes longer for
each. So nothing is assumed that can be measured. What was never tried is believed to cost little
more than what was, so that it is tried; what was measured long ago is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zse.backends.types import MAX_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.drafting.drafter import Offer

_NEWEST_WEIGHS = 0.25
_MOST_GROWTH = 1.5
"""Times its believed cost that a step counts as at most: who was interrupted tells nothing."""
_FORGOTTEN_AFTER = 1024
"""Steps."""
_LEAST_SECONDS = 1e-9
"""Where a clock has not moved."""
_FIRST_SLOPE = 0.08
"""What one more row is believed to cost, beside the step without it, until it was tried: so much,
or less than half of one of many rows."""
_FIRST_PART = 0.4
_LEAST_GAIN = 1.05
"""Tokens a second with drafts, over those without, from which on they are worth it."""


class _Measured(NamedTuple):
    seconds: float
    at_step: int
    is_first: bool
    """Whether nothing like it was measured before, or not lately."""


class StepCosts:
    """Seconds of steps by their rows: of those that check drafts, and of those that check none."""

    def __init__(self) -> None:
        self._plain: dict[int, _Measured] = {}
        self._checking: dict[int, _Measured] = {}
        self._num_steps = 0

    def note(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Note what a step took; ``num_drafts`` of its rows were checks of drafts.

        A first check of so many rows counts as little more than it was believed to take: a GPU
        captures it then, which takes many times as long as repeating it will.
        """
        self._num_steps += 1
        seconds = max(seconds, _LEAST_SECONDS)
        table = self._checking if num_drafts else self._plain
        old = table.get(num_rows)
        is_first = old is None or self._num_steps - old.at_step >= _FORGOTTEN_AFTER
        if is_first:
            believed = self.checking(num_rows, num_drafts) if num_drafts else None
            seconds = min(seconds, believed * _MOST_GROWTH) if believed else seconds
        elif old is not None and not old.is_first:
            newest = min(seconds, old.seconds * _MOST_GROWTH)
            seconds = old.seconds + _NEWEST_WEIGHS * (newest - old.seconds)
        table[num_rows] = _Measured(seconds, self._num_steps, is_first)

    def plain(self, num_rows: int) -> float | None:
        """Return the seconds of a step without drafts; None while none like it was seen."""
        measured = self._plain.get(num_rows)
        return measured.seconds if measured is not None else None

    def checking(self, num_rows: int, num_drafts: int) -> float | None:
        """Return the seconds of a step of so many rows, the drafts among them.

        What was not measured lies on a line between its neighbours that were.
        """
        base_rows = num_rows - num_drafts
        base = self.plain(base_rows)
        if base is None:
            return None
        known = [
            (rows, measured.seconds)
            for rows, measured in self._checking.items()
            if self._num_steps - measured.at_step < _FORGOTTEN_AFTER
        ]
        below = max((one for one in known if one[0] <= num_rows), default=(base_rows, base))
        above = min((one for one in known if one[0] > num_rows), default=None)
        if above is None:
            slope = min(_FIRST_SLOPE, _FIRST_PART / base_rows)
            return below[1] + slope * base * (num_rows - below[0])
        part = (num_rows - below[0]) / (above[0] - below[0])
        return below[1] + part * (above[1] - below[1])


def lengths_that_pay(offers: Sequence[Offer], num_rows: int, costs: StepCosts) -> list[int]:
    """Return how many drafts of each offer make the most tokens a second; often none.

    Args:
        offers: What could be guessed.
        num_rows: Rows that the step has without drafts.
        costs: What steps cost.
    """
    lengths, none = [0] * len(offers), [0] * len(offers)
    without = costs.plain(num_rows)
    if without is None:
        return none  # one step is taken before anything is said of another
    drafts = [
        (offer.chance**place, index, place)
        for index, offer in enumerate(offers)
        for place in range(1, offer.most + 1)
    ]
    drafts.sort(key=lambda draft: (-draft[0], draft[2]))
    tokens, making, best, best_count = float(num_rows), 0.0, num_rows / without * _LEAST_GAIN, 0
    for count, (chance, index, place) in enumerate(drafts[:MAX_DRAFTS], start=1):
        tokens += chance
        making = max(making, place * offers[index].seconds_each)
        seconds = costs.checking(num_rows + count, count)
        assert seconds is not None
        rate = tokens / (seconds + making)
        if rate > best:
            best, best_count = rate, count
    for _, index, _ in drafts[:best_count]:
        lengths[index] += 1
    return lengths
