"""Reads the windows with one model, or with two that are held against each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.evaluate.likelihood import Mean, join, score
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.evaluate.models import Reader
    from zse.evaluate.texts import Window


@record
class Distance:
    """How far a model's next tokens are from those of the model it is held against."""

    divergence_nats: Mean
    """KL(other || model), the mean over tokens."""
    same_top: Mean
    """Share of tokens whose likeliest follower is the same."""
    other_surprise_nats: Mean


@record
class Evaluation:
    """What a model makes of the texts."""

    num_tokens: int
    """Tokens that were foretold."""
    surprise_nats: Mean
    """Minus the logarithm of what each token was given; perplexity is its exponential."""
    distance: Distance | None

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise_nats.value)


def evaluate(
    model: Reader,
    windows: Sequence[Window],
    against: Reader | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Read all windows.

    Args:
        model: What is measured.
        windows: What it reads.
        against: What it is held against.
        progress: Called with the tokens that were read and all there are.

    Raises:
        UsageError: The two models do not have the same tokens.
    """
    total, done = sum(len(window.token_ids) for window in windows), 0
    if against is not None and against.vocab_size != model.vocab_size:
        raise UsageError(
            f"a vocabulary of {model.vocab_size:,} tokens cannot be held against one of "
            f"{against.vocab_size:,}: compare models that share a tokenizer"
        )
    parts = []
    for window in windows:
        found = model.logits(window.token_ids)
        expected = against.logits(window.token_ids) if against else None
        parts.append(score(window.token_ids, found, expected, num_given=window.num_given))
        done += len(window.token_ids)
        if progress:
            progress(done, total)
    scores = join(parts)
    distance = None
    if scores.divergence is not None:
        assert scores.same is not None
        assert scores.other_surprise is not None
        distance = Distance(
            divergence_nats=Mean.of(scores.divergence),
            same_top=Mean.of(scores.same),
            other_surprise_nats=Mean.of(scores.other_surprise),
        )
    return Evaluation(
        num_tokens=len(scores.surprise), surprise_nats=Mean.of(scores.surprise), distance=distance
    )
