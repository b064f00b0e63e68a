"""Two readers of one text: what their difference comes to, and which cannot be compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from zse.errors import UsageError
from zse.evaluate.run import evaluate
from zse.evaluate.texts import Window

if TYPE_CHECKING:
    from collections.abc import Sequence


class Certain:
    """Gives the token one above the last a share of the whole, and the rest to all alike."""

    def __init__(self, share: float, vocab_size: int = 10) -> None:
        self.vocab_size = vocab_size
        self._share = share

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        rest = (1 - self._share) / (self.vocab_size - 1)
        rows = np.full((len(token_ids), self.vocab_size), math.log(rest), np.float32)
        for row, token in zip(rows, token_ids, strict=True):
            row[(token + 1) % self.vocab_size] = math.log(self._share)
        return rows


WINDOWS = [Window(token_ids=[0, 1, 2, 3], num_given=0), Window(token_ids=[5, 6, 7], num_given=1)]


def test_perplexity_is_one_over_the_share_of_the_tokens_that_came() -> None:
    found = evaluate(Certain(0.5), WINDOWS)
    assert found.perplexity == pytest.approx(2.0, rel=1e-6)
    assert found.num_tokens == 5
    assert found.distance is None


def test_the_distance_is_that_of_the_two_distributions() -> None:
    found = evaluate(Certain(0.5), WINDOWS, Certain(0.8))
    expected = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert found.distance.divergence_nats.value == pytest.approx(expected, rel=1e-5)
    assert found.distance.same_top.value == 1
    assert math.exp(found.distance.other_surprise_nats.value) == pytest.approx(1.25, rel=1e-6)


def test_progress_ends_with_all_tokens() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(Certain(0.5), WINDOWS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 7), (7, 7)]


def test_models_of_other_vocabularies_are_not_compared() -> None:
    with pytest.raises(UsageError, match="10 tokens cannot be held against one of 12"):
        evaluate(Certain(0.5), WINDOWS, Certain(0.5, vocab_size=12))
