"""Shares of what is bounded: the greediest leave room, and everything that is given back counts."""

import random

import pytest

from zse.serve.shares import Shares


def filled(num_tenants, *, most):
    """Return the shares when so many callers have taken all that they get, one piece at a time."""
    shares, wanting = Shares(), [f"key-{number}" for number in range(num_tenants)]
    while wanting:
        for tenant in list(wanting):
            fits = shares.total < most and shares.has_share(tenant, 1, most=most)
            (shares.take(tenant, 1) if fits else wanting.remove(tenant))
    return shares


@pytest.mark.parametrize(
    ("num_tenants", "held"), [(1, 256), (2, 142), (3, 98), (8, 38), (100, 3), (400, 0)]
)
def test_who_takes_all_they_get_have_equal_parts(num_tenants, held):
    shares = filled(num_tenants, most=320)
    each = {shares.held(f"key-{number}") for number in range(min(num_tenants, 320))}
    assert min(each) in (held, held + 1)
    assert max(each) <= held + 1


@pytest.mark.parametrize("num_tenants", [1, 2, 5, 20])
def test_however_many_take_all_they_get_another_finds_room(num_tenants):
    assert filled(num_tenants, most=320).has_share("newcomer", 1, most=320)


def test_what_is_taken_and_given_back_at_random_leaves_nothing():
    dice, shares, taken = random.Random(4), Shares(), []
    for _ in range(2000):
        if taken and dice.random() < 0.5:
            tenant, amount = taken.pop(dice.randrange(len(taken)))
            shares.take(tenant, -amount)
        else:
            piece = dice.choice(["", "a", "b", "c"]), dice.randrange(50)
            if shares.has_share(*piece, most=1000):
                shares.take(*piece)
                taken.append(piece)
        assert shares.total == sum(amount for _, amount in taken)
    for tenant, amount in taken:
        shares.take(tenant, -amount)
    assert (shares.total, shares.held("a"), shares.held("")) == (0, 0, 0)


def test_who_needs_no_key_has_all_of_it_and_so_has_a_key_that_takes_it_at_once():
    shares = Shares()
    assert shares.has_share("key", 320, most=320)
    shares.take("", 300)
    assert shares.has_share("", 20, most=320)
