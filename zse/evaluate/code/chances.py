"""pass@k, its interval, and the difference of two models on the same problems.

Problems are what is drawn anew (the bootstrap): how a model does on problems like these. The noise
of one sampled answer is part of that, since each problem brings its own answers along.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

_DRAWS = 4000
_SHARE = 0.95
_SEED = 0


@record
class Estimate:
    """A mean over problems, and the ends of its 95% interval."""

    value: float
    low: float
    high: float


@record
class Difference:
    """What one model solves more than another: a share from -1 to 1, problem by problem."""

    mean: Estimate
    num_only_this: int
    """Problems of which this one solved more than the other."""
    num_only_other: int
    chance: float
    """Of problems being as unevenly split where both are as good (the sign test, which for one
    answer to each problem is McNemar's exact test)."""


def pass_at(k: int, num_samples: int, num_passed: int) -> float:
    """Return the chance that one of ``k`` answers passes: the unbiased estimate of the Codex paper.

    Args:
        k: Answers that are drawn, at most ``num_samples``.
        num_samples: Answers that there are.
        num_passed: How many of them passed.
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of a value for each problem."""
    draw = random.Random(_SEED).choices
    count = len(values)
    means = sorted(sum(draw(values, k=count)) / count for _ in range(_DRAWS))
    edge = int(_DRAWS * (1 - _SHARE) / 2)
    return Estimate(value=sum(values) / count, low=means[edge], high=means[-1 - edge])


def difference(these: Sequence[float], others: Sequence[float]) -> Difference:
    """Return how much more one model solves than another of the same problems, in one order."""
    apart = [this - other for this, other in zip(these, others, strict=True)]
    more, fewer = sum(one > 0 for one in apart), sum(one < 0 for one in apart)
    return Difference(
        mean=mean_of(apart),
        num_only_this=more,
        num_only_other=fewer,
        chance=_sign_test(more, fewer),
    )


def _sign_test(more: int, fewer: int) -> float:
    """Return the chance of a split as uneven, of heads and tails."""
    count = more + fewer
    tail = sum(math.comb(count, one) for one in range(min(more, fewer) + 1))
    chance: float = 2 * tail / 2**count
    return min(1.0, chance)
