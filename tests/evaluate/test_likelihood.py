"""Means over tokens, and what they are means of: held against torch and against hand counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zse.evaluate.likelihood import BLOCK_TOKENS, Mean, score


def random_logits(seed: int, tokens: int = 70, vocabulary: int = 11) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, vocabulary)).astype(np.float32) * 3


def test_surprise_and_divergence_are_those_of_torch() -> None:
    found, expected = random_logits(0), random_logits(1)
    token_ids = np.random.default_rng(2).integers(0, 11, len(found)).tolist()
    scores = score(token_ids, found, expected)
    q, p = (torch.log_softmax(torch.tensor(rows).double(), 1) for rows in (found, expected))
    surprise = torch.nn.functional.nll_loss(q[:-1], torch.tensor(token_ids[1:]), reduction="none")
    divergence = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(1)
    torch.testing.assert_close(torch.tensor(scores.surprise), surprise)
    torch.testing.assert_close(torch.tensor(scores.divergence), divergence)
    assert scores.same.mean() == float((p.argmax(1) == q.argmax(1)).double().mean())


def test_a_model_is_at_no_distance_from_itself() -> None:
    rows = random_logits(0)
    scores = score([0] * len(rows), rows, rows)
    assert abs(scores.divergence).max() < 1e-12
    assert scores.same.all()


def test_tokens_in_front_are_not_foretold_but_what_follows_them_is() -> None:
    rows = random_logits(0, tokens=5)
    assert len(score([1, 2, 3, 4, 5], rows, num_given=2).surprise) == 3
    assert len(score([1, 2, 3, 4, 5], rows).surprise) == 4


def test_the_interval_holds_the_true_mean_nineteen_times_of_twenty() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        mean = Mean.of(generator.normal(3.0, 2.0, size=12 * BLOCK_TOKENS))
        held += abs(mean.value - 3.0) <= mean.margin
    assert 0.91 <= held / 400 <= 0.98


@pytest.mark.parametrize("count", [1, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 1])
def test_one_block_says_nothing_of_its_interval(count: int) -> None:
    assert math.isinf(Mean.of(np.ones(count)).margin)
