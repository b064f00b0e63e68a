"""Rates that forget."""

from __future__ import annotations

import pytest

from zse.engine.drafting.tally import Tally


def test_a_rate_begins_with_what_is_believed_and_becomes_what_is_seen():
    tally = Tally((0.5, 0.9))
    for _ in range(200):
        tally.count(0, 1, 1)
    assert tally.rate(0) == pytest.approx(1.0, abs=0.01)
    assert tally.rate(1) == 0.9
    for _ in range(200):
        tally.count(0, 1, 0)
    assert tally.rate(0) == pytest.approx(0.0, abs=0.01)


def test_a_sequence_begins_with_the_rates_of_all_and_has_its_own():
    tally = Tally((0.5,))
    tally.count(0, 10, 10)
    own = tally.begin()
    assert own.rate(0) == pytest.approx(tally.rate(0))
    own.count(0, 10, 0)
    assert own.rate(0) < tally.rate(0)
