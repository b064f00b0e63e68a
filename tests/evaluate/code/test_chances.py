"""pass@k and its interval, held against what they are by definition."""

from __future__ import annotations

import itertools
import random

import pytest

from zse.evaluate.code.chances import difference, mean_of, pass_at


@pytest.mark.parametrize("passed", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_all_draws_that_hold_one_that_passed(passed: int, k: int) -> None:
    answers = [True] * passed + [False] * (5 - passed)
    draws = [any(draw) for draw in itertools.combinations(answers, k)]
    assert pass_at(k, 5, passed) == pytest.approx(sum(draws) / len(draws))


def test_the_interval_is_that_of_a_share() -> None:
    found = mean_of([1.0] * 60 + [0.0] * 40)
    assert found.value == 0.6
    assert found.low == pytest.approx(0.6 - 0.096, abs=0.015)  # 1.96 * sqrt(0.6 * 0.4 / 100)
    assert found.high == pytest.approx(0.6 + 0.096, abs=0.015)


def test_nineteen_of_twenty_intervals_hold_the_true_share() -> None:
    generator = random.Random(1)
    held = 0
    for _ in range(20):
        found = mean_of([float(generator.random() < 0.5) for _ in range(100)])
        held += found.low <= 0.5 <= found.high
    assert held >= 16


def test_two_models_are_compared_problem_by_problem() -> None:
    these, others = [1.0] * 10 + [0.0] * 90, [1.0] * 4 + [0.0] * 96
    found = difference(these, others)
    assert found.mean.value == pytest.approx(0.06)
    assert found.mean.low > 0
    assert (found.num_only_this, found.num_only_other) == (6, 0)
    assert found.chance == pytest.approx(2 / 2**6)


def test_equal_models_are_not_apart() -> None:
    found = difference([1.0, 0.0], [1.0, 0.0])
    assert (found.mean.value, found.mean.low, found.mean.high, found.chance) == (0, 0, 0, 1)


def test_an_even_split_is_no_difference() -> None:
    assert difference([1.0, 0.0], [0.0, 1.0]).chance == 1
