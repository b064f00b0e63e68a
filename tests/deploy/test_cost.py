"""What a machine costs that sleeps: formulas against simulated requests, and bounds that hold."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.deploy.cost import (
    MOST_BUSY,
    Traffic,
    Waking,
    idle_for,
    sleepy_machine,
    wakings,
    ways,
)
from zse.deploy.machines import load_catalog
from zse.errors import UsageError
from zse.units import GIB


def waking(**facts) -> Waking:
    return Waking(
        **{
            "platform": "x",
            "title": "X",
            "idle_seconds": 60,
            "least_idle_seconds": 0,
            "most_idle_seconds": 1e9,
            "bills_waking": True,
            "source": "a test",
            "before_seconds": 2.0,
            **facts,
        }
    )


def simulated(traffic: Traffic, place: Waking, idle_seconds: float) -> tuple[float, float]:
    """Return the share of time paid for, and of requests that wait for a wake."""
    source, now, rate = random.Random(7), 0.0, traffic.per_second
    wake = traffic.wake_seconds + place.before_seconds
    kept = traffic.request_seconds + idle_seconds
    ready, until, paid, slow, count = -1.0, -1.0, 0.0, 0, 60_000
    for _ in range(count):
        now += source.expovariate(rate)
        if now >= until:  # asleep
            ready, slow = now + wake, slow + 1
            paid += wake * place.bills_waking + kept
            until = ready + kept
        elif now < ready:
            slow += 1
        else:
            paid += now + kept - until
            until = now + kept
    return paid / now, slow / count


@pytest.mark.parametrize("bills_waking", [True, False])
@pytest.mark.parametrize(("per_hour", "idle"), [(5, 60), (60, 60), (60, 10), (200, 30), (1000, 1)])
def test_averages_are_those_of_requests_that_come_at_random(per_hour, idle, bills_waking):
    traffic = Traffic(requests_per_hour=per_hour, request_seconds=3, wake_seconds=1)
    place = waking(bills_waking=bills_waking)
    found = sleepy_machine(traffic, place, idle)
    up_share, slow_share = simulated(traffic, place, idle)
    assert found.up_share == pytest.approx(up_share, rel=0.04)
    assert found.slow_share == pytest.approx(slow_share, rel=0.04)


@settings(max_examples=200, deadline=None)
@given(
    per_hour=st.floats(0.001, 1e6),
    seconds=st.floats(0.001, 3600),
    idle=st.floats(0, 1e5),
    wake=st.floats(0, 1000),
)
def test_shares_are_shares_whatever_is_asked(per_hour, seconds, idle, wake):
    traffic = Traffic(requests_per_hour=per_hour, request_seconds=seconds, wake_seconds=wake)
    found = sleepy_machine(traffic, waking(), idle)
    assert 0 <= found.up_share <= 1
    assert 0 <= found.slow_share <= 1
    assert math.isfinite(found.up_share)


@settings(max_examples=100, deadline=None)
@given(per_hour=st.floats(0.1, 5000), slow=st.floats(0.001, 1))
def test_an_idle_window_keeps_the_bound_that_it_was_made_for(per_hour, slow):
    traffic = Traffic(requests_per_hour=per_hour, request_seconds=2)
    idle = idle_for(traffic, waking(), slow)
    assert sleepy_machine(traffic, waking(), idle).slow_share <= slow * (1 + 1e-9)


def test_a_platform_whose_windows_are_too_short_is_always_there():
    traffic = Traffic(requests_per_hour=1, request_seconds=2)
    assert idle_for(traffic, waking(most_idle_seconds=60), 0.01) is None
    found = ways(traffic, memory_bytes=6 * GIB, most_slow_share=0.01, platforms=["modal"])
    assert [way.sleepy for way in found] == [None]


def test_who_is_asked_seldom_sleeps_and_pays_less_the_cheapest_first():
    found = ways(Traffic(requests_per_hour=2, request_seconds=3), memory_bytes=6 * GIB)
    assert found[0].sleepy is not None
    assert [way.usd_per_month for way in found] == sorted(way.usd_per_month for way in found)
    by_kind = {(way.platform, way.sleepy is None): way.usd_per_month for way in found}
    for platform, always in list(by_kind):
        if always:
            assert by_kind[platform, False] < by_kind[platform, True]


def test_more_than_one_machine_never_sleeps():
    traffic = Traffic(requests_per_hour=36_000, request_seconds=3, concurrency=8)
    assert traffic.num_machines == math.ceil(30 / (8 * MOST_BUSY))
    found = ways(traffic, memory_bytes=6 * GIB, platforms=["modal"])
    assert [(way.sleepy, way.num_machines) for way in found] == [(None, traffic.num_machines)]


def test_a_model_that_nothing_holds_has_no_way():
    traffic = Traffic(requests_per_hour=2, request_seconds=3)
    assert ways(traffic, memory_bytes=1000 * GIB) == []


@pytest.mark.parametrize(
    "numbers",
    [
        {"requests_per_hour": 0},
        {"request_seconds": -1},
        {"concurrency": math.inf},
        {"wake_seconds": math.nan},
        {"requests_per_hour": math.nan},
    ],
)
def test_numbers_without_sense_are_refused_by_name(numbers):
    with pytest.raises(UsageError, match=next(iter(numbers))):
        Traffic(**{"requests_per_hour": 1, "request_seconds": 1, **numbers})


def test_an_unknown_platform_is_refused_with_those_there_are():
    traffic = Traffic(requests_per_hour=2, request_seconds=3)
    with pytest.raises(UsageError, match="'heroku'"):
        ways(traffic, memory_bytes=GIB, platforms=["heroku"])


@pytest.mark.parametrize("share", [0, 1.5, -1])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UsageError, match="share of slow"):
        idle_for(Traffic(requests_per_hour=2, request_seconds=3), waking(), share)


def test_each_platform_that_wakes_has_a_price_table_and_a_source():
    for place in wakings():
        assert load_catalog(place.platform).prices_of
        assert place.source
        low, high = place.least_idle_seconds, place.most_idle_seconds
        assert low <= place.idle_seconds <= high
