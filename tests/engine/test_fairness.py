from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from zse.engine.fairness import MAX_METERS, FairShare


def share_of(*tenants):
    share = FairShare()
    for tenant in tenants:
        share.enter(tenant)
    return share


def turn(share, tenants, amount=1.0, weights=None):
    tenant = share.first(tenants)
    share.take(tenant)
    share.charge(tenant, amount, (weights or {}).get(tenant, 1.0))
    return tenant


def test_tenants_that_want_the_same_take_turns():
    share = share_of("a", "b")
    assert [turn(share, ["a", "b"]) for _ in range(6)] == ["a", "b"] * 3


def test_a_tenant_of_three_times_the_weight_gets_three_times_the_work():
    share = share_of("a", "b")
    turns = [turn(share, ["a", "b"], weights={"b": 3.0}) for _ in range(400)]
    assert abs(turns.count("b") - 300) <= 1


def test_who_asked_for_nothing_has_saved_nothing():
    share = share_of("busy")
    for _ in range(1000):
        turn(share, ["busy"])
    share.enter("late")
    turns = [turn(share, ["busy", "late"]) for _ in range(10)]
    assert turns.count("late") == 5


def test_who_leaves_the_line_and_comes_back_is_where_it_was():
    share = share_of("a", "b")
    for _ in range(10):
        share.charge("a", 100)
        share.enter("a")
    assert [turn(share, ["a", "b"]) for _ in range(1000)] == ["b"] * 1000


@given(seed=st.integers(0, 10_000), weights=st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_tenants_that_always_wait_differ_by_no_more_than_a_turn_of_each(seed, weights):
    draw = random.Random(seed)
    tenants = [str(i) for i in range(len(weights))]
    share, done = share_of(*tenants), dict.fromkeys(tenants, 0.0)
    for _ in range(200):
        amount = draw.randint(1, 50)
        tenant = share.first(tenants)
        share.take(tenant)
        share.charge(tenant, amount, weights[int(tenant)])
        done[tenant] += amount / weights[int(tenant)]
        assert max(done.values()) - min(done.values()) <= 50


def test_only_so_many_meters_are_kept_and_those_that_are_ahead():
    share = share_of("greedy")
    share.charge("greedy", 10)
    for number in range(3 * MAX_METERS):
        share.enter(str(number))
    assert share.first(["greedy", "new"]) == "new"
    assert len(share._meters) <= MAX_METERS
