"""How many drafts are worth what they cost."""

from __future__ import annotations

import pytest

from zse.backends.types import MAX_DRAFTS
from zse.engine.drafting.costs import StepCosts, lengths_that_pay
from zse.engine.drafting.drafter import NO_OFFER, Offer


def costs_of(*, plain, checking=()):
    """What was measured twice: a first time is believed to a certain extent only."""
    costs = StepCosts()
    for rows, seconds in (*plain, *plain):
        costs.note(rows, 0, seconds)
    for rows, seconds in (*checking, *checking):
        costs.note(rows, 1, seconds)
    return costs


def test_what_is_captured_at_its_first_time_is_measured_by_the_second():
    costs = costs_of(plain=[(1, 1.0)])
    costs.note(8, 7, 60.0)  # a graph was made
    assert lengths_that_pay([Offer(0.95, 10)], 1, costs) > [0]
    costs.note(8, 7, 1.1)
    assert costs.checking(8, 7) == pytest.approx(1.1)


def test_before_a_step_was_seen_nothing_is_drafted():
    assert lengths_that_pay([Offer(0.99, 10)], 1, StepCosts()) == [0]


@pytest.mark.parametrize(
    ("chance", "seconds_of_row", "lengths"),
    [
        (0.95, 0.01, [10]),  # rows that cost nothing
        (0.6, 0.01, [7]),
        (0.95, 0.4, [6]),
        (0.5, 0.3, [1]),
        (0.3, 0.3, [0]),
        (0.9, 1.0, [0]),  # rows that cost as much as steps: it never pays
    ],
)
def test_drafts_are_as_long_as_their_chance_is_worth_their_rows(chance, seconds_of_row, lengths):
    checking = [(rows, 1 + seconds_of_row * (rows - 1)) for rows in range(2, 12)]
    costs = costs_of(plain=[(1, 1.0)], checking=checking)
    assert lengths_that_pay([Offer(chance, 10)], 1, costs) == lengths


def test_likely_drafts_go_before_unlikely_ones_and_no_offer_gets_none():
    costs = costs_of(plain=[(3, 1.0)], checking=[(rows, 1 + 0.16 * (rows - 3)) for rows in (4, 40)])
    lengths = lengths_that_pay([Offer(0.5, 10), NO_OFFER, Offer(0.95, 10)], 3, costs)
    assert lengths[2] > lengths[0]
    assert lengths[1] == 0


def test_in_a_batch_that_computes_for_each_row_drafts_stop():
    offers = [Offer(0.8, 10)] * 8
    alone = costs_of(plain=[(1, 1.0)], checking=[(rows, 1.0) for rows in (2, 11)])
    crowd = costs_of(plain=[(8, 1.0)], checking=[(rows, rows / 8) for rows in (9, 88)])
    assert lengths_that_pay(offers[:1], 1, alone) == [10]
    assert lengths_that_pay(offers, 8, crowd) == [0] * 8


def test_drafts_that_cost_something_are_fewer():
    costs = costs_of(plain=[(1, 1.0)], checking=[(rows, 1.0) for rows in range(2, 12)])
    (free,) = lengths_that_pay([Offer(0.8, 10)], 1, costs)
    (dear,) = lengths_that_pay([Offer(0.8, 10, 0.3)], 1, costs)
    (too_dear,) = lengths_that_pay([Offer(0.8, 10, 1.0)], 1, costs)
    assert free > dear > too_dear == 0


def test_a_step_checks_no_more_drafts_than_it_has_room_for():
    costs = costs_of(plain=[(20, 1.0)])
    costs.note(200, 180, 1.0)
    assert sum(lengths_that_pay([Offer(1.0, 10)] * 20, 20, costs)) == MAX_DRAFTS


def test_what_was_not_measured_lies_between_what_was():
    costs = costs_of(plain=[(2, 1.0)], checking=[(4, 1.4), (8, 2.0)])
    assert costs.checking(3, 1) == pytest.approx(1.2)
    assert costs.checking(6, 4) == pytest.approx(1.7)
    assert 2.0 < (costs.checking(9, 7) or 0) < 2.2
    assert costs.checking(9, 8) is None  # no step of one row was seen


def test_one_step_that_took_long_and_one_long_ago_are_not_believed():
    costs = costs_of(plain=[(1, 1.0)], checking=[(4, 1.2)])
    costs.note(4, 3, 50.0)
    assert (costs.checking(4, 3) or 0) < 1.4
    for _ in range(2000):
        costs.note(1, 0, 1.0)
    assert costs.checking(4, 3) == pytest.approx(1.24)
