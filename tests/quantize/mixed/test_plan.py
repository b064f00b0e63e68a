"""Under a budget bits go where they save most; what does not fit is told before work begins."""

from __future__ import annotations

from itertools import product

import pytest

from zse.errors import UsageError
from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme
from zse.quantize.mixed.plan import Budget, Option, choose, no_worse_than_one_for_all

SCHEMES = [(Scheme.INT4, 128), (Scheme.NF4, 64), (Scheme.INT4, 32), (Scheme.INT8, 0)]


def options(index: int, errors: list[float], rows: int = 64) -> list[Option]:
    return [
        Option(
            planned=PlannedTensor(
                name=f"w{index}", scheme=scheme, shape=(rows, 128), group_size=size
            ),
            error=error,
        )
        for (scheme, size), error in zip(SCHEMES, errors, strict=True)
    ]


WEIGHTS = [
    options(0, [0.010, 0.009, 0.007, 0.0001]),
    options(1, [0.090, 0.085, 0.060, 0.0005]),
    options(2, [0.020, 0.030, 0.019, 0.0002], rows=256),
    options(3, [0.004, 0.003, 0.002, 0.0001], rows=32),
]


@pytest.mark.parametrize("bits", [4.25, 4.3, 4.5, 5.0, 5.5, 7.0, 8.5])
def test_what_is_chosen_fits_and_nearly_equals_the_best_there_is(bits: float) -> None:
    numbers = sum(rows * 128 for rows in (64, 64, 256, 32))
    most = int(bits * numbers / 8)
    plan = choose(WEIGHTS, most)
    assert plan.length_bytes <= most
    assert plan.bits <= bits
    fitting = [
        combination
        for combination in product(*WEIGHTS)
        if sum(option.length_bytes for option in combination) <= most
    ]
    best = min(sum(option.error for option in combination) for combination in fitting)
    worst_step = max(option.error for each in WEIGHTS for option in each[:1])
    assert sum(option.error for option in plan.chosen.values()) <= best + worst_step / 4


def test_the_weight_that_loses_most_is_the_first_to_get_more() -> None:
    smallest = sum(each[0].length_bytes for each in WEIGHTS)
    extra = WEIGHTS[1][3].length_bytes - WEIGHTS[1][0].length_bytes
    plan = choose(WEIGHTS, smallest + extra)
    assert plan.chosen["w1"].planned.scheme is Scheme.INT8


@pytest.mark.parametrize("bits", [4.25, 4.3, 4.5, 5.0, 5.5, 7.0])
def test_no_weight_loses_more_than_by_the_best_scheme_for_all(bits: float) -> None:
    most = int(bits * sum(rows * 128 for rows in (64, 64, 256, 32)) / 8)
    uniform = [
        [each[place] for each in WEIGHTS]
        for place in range(len(SCHEMES))
        if sum(each[place].length_bytes for each in WEIGHTS) <= most
    ]
    best = min(uniform, key=lambda chosen: sum(option.error for option in chosen))
    left = no_worse_than_one_for_all(WEIGHTS, most)
    plan = choose(left, most)
    assert plan.length_bytes <= most
    for option in best:
        assert plan.chosen[option.planned.name].error <= option.error
    assert any(len(one) < len(each) for one, each in zip(left, WEIGHTS, strict=True))


def test_where_no_scheme_fits_all_nothing_is_left_out() -> None:
    mixed = [WEIGHTS[0][:1], WEIGHTS[1][3:]]
    assert no_worse_than_one_for_all(mixed, 1 << 30) == [list(each) for each in mixed]
    assert no_worse_than_one_for_all(WEIGHTS, 1) == [list(each) for each in WEIGHTS]
    assert no_worse_than_one_for_all([], 1) == []


def test_of_two_schemes_of_one_size_the_better_one_is_taken() -> None:
    plan = choose(WEIGHTS[:1], WEIGHTS[0][0].length_bytes)
    assert plan.chosen["w0"].planned.scheme is Scheme.NF4


def test_a_budget_that_cannot_be_met_says_what_could() -> None:
    with pytest.raises(UsageError, match="leaves 1,000 bytes for weights that take") as caught:
        choose(WEIGHTS, 1000)
    assert "4.25 a weight" in caught.value.hint


@pytest.mark.parametrize(
    "given", [{}, {"bits": 4.5, "gib": 2.0}, {"bits": 0.0}, {"gib": -1.0}, {"bits": float("nan")}]
)
def test_a_target_that_is_none_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="target"):
        Budget(**given)
