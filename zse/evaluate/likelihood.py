"""What two models say of the same tokens: perplexity, divergence, the same first choice.

Every mean comes with half of its 95% interval. Neighbouring tokens depend on each other, so the
interval is that of the means of blocks of tokens (Flegal and Jones, 2010, "batch means").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BLOCK_TOKENS = 32
_ROWS = 64
"""Distributions over 150,000 tokens are compared so many at a time."""
_QUANTILES = (1.96, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Of Student's t at 97.5%: for 1 to 9 degrees of freedom, and first for more."""


@record
class Mean:
    """A mean over tokens, and how far the true one may be."""

    value: float
    margin: float
    """Half of the 95% interval; infinite where there is one block only."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Mean:
        """Return the mean of numbers in the order of their tokens."""
        count = len(values) // BLOCK_TOKENS
        if count < 2:
            return cls(value=float(values.mean()), margin=math.inf)
        blocks = np.array([block.mean() for block in np.array_split(values, count)])
        quantile = _QUANTILES[count - 1] if count <= len(_QUANTILES) else _QUANTILES[0]
        margin = quantile * float(blocks.std(ddof=1)) / math.sqrt(count)
        return cls(value=float(values.mean()), margin=margin)


@record
class TokenScores:
    """What was found token by token: float64 arrays as long as there are tokens."""

    surprise: NDArray[np.float64]
    """Minus the logarithm (nats) of what the model gave each token that followed."""
    divergence: NDArray[np.float64] | None = None
    """KL(other || model) in nats of each next token's distribution."""
    same: NDArray[np.float64] | None = None
    """1 where both hold the same token likeliest, else 0."""
    other_surprise: NDArray[np.float64] | None = None


def score(
    token_ids: Sequence[int],
    found: NDArray[np.float32],
    expected: NDArray[np.float32] | None = None,
    *,
    num_given: int = 0,
) -> TokenScores:
    """Score one window.

    Args:
        token_ids: What was read.
        found: The model's logits [tokens, vocabulary]: row i is about token i + 1.
        expected: Those of the model it is held against.
        num_given: Tokens in front that are not foretold, though read.
    """
    first = max(num_given - 1, 0)  # the row of the last given token foretells the first of the text
    following = np.asarray(token_ids[first + 1 :])
    parts = []
    for start in range(first, len(token_ids), _ROWS):
        rows = slice(start, start + _ROWS)
        following_here = following[start - first : start - first + _ROWS]
        parts.append(
            _score_rows(found[rows], None if expected is None else expected[rows], following_here)
        )
    return join(parts)


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """Return the scores of all parts, one after the other."""

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(part, name) for part in parts])

    if parts[0].divergence is None:
        return TokenScores(surprise=joined("surprise"))
    return TokenScores(
        surprise=joined("surprise"),
        divergence=joined("divergence"),
        same=joined("same"),
        other_surprise=joined("other_surprise"),
    )


def _score_rows(
    found: NDArray[np.float32], expected: NDArray[np.float32] | None, following: NDArray[np.int64]
) -> TokenScores:
    """Score some rows; the last of a window has nothing that follows."""
    model = _log_softmax(found)
    chosen = np.arange(len(following)), following
    surprise = -model[chosen]
    if expected is None:
        return TokenScores(surprise=surprise)
    other = _log_softmax(expected)
    return TokenScores(
        surprise=surprise,
        divergence=(np.exp(other) * (other - model)).sum(1),
        same=(other.argmax(1) == model.argmax(1)).astype(np.float64),
        other_surprise=-other[chosen],
    )


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = logits.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(1, keepdims=True))
    return rows
