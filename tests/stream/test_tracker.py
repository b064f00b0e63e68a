"""Levels of memory pressure, and who is told of them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import UsageError
from zse.stream.tracker import MemoryPressure, MemoryTracker, PressureLimits

LIMITS = PressureLimits(high=100, critical=50, oom=10)


def tracker_over(free: list[int], **options: object) -> MemoryTracker:
    return MemoryTracker(lambda: (free[0], 1000), LIMITS, **options)


def test_levels_begin_where_they_are_said_to():
    levels = [LIMITS.level_of(free) for free in (101, 100, 99, 50, 49, 11, 10, 0)]
    assert [level.name for level in levels] == [
        "NORMAL", "NORMAL", "HIGH", "HIGH", "CRITICAL", "CRITICAL", "OOM", "OOM",
    ]  # fmt: skip


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_less_memory_is_never_less_pressure(first, second):
    low, high = sorted((first, second))
    assert LIMITS.level_of(low) >= LIMITS.level_of(high)


def test_callbacks_hear_of_changes_alone():
    free, heard = [500], []
    tracker = tracker_over(free)
    tracker.on_change(lambda state: heard.append((state.pressure, state.used_bytes)))
    for now in (400, 90, 80, 20, 0, 999):
        free[0] = now
        tracker.update()
    assert heard == [
        (MemoryPressure.HIGH, 910),
        (MemoryPressure.CRITICAL, 980),
        (MemoryPressure.OOM, 1000),
        (MemoryPressure.NORMAL, 1),
    ]


def test_memory_is_not_looked_at_more_often_than_asked():
    now, free = [0.0], [500]
    tracker = tracker_over(free, clock=lambda: now[0])
    free[0] = 0
    assert tracker.update(not_before_seconds=1.0).pressure is MemoryPressure.NORMAL
    now[0] = 1.0
    assert tracker.update(not_before_seconds=1.0).pressure is MemoryPressure.OOM


def test_the_window_is_what_fits_and_at_least_one_layer():
    tracker = tracker_over([500])
    assert tracker.optimal_window([100] * 9) == 5
    assert tracker.optimal_window([100] * 9, reserve_bytes=250) == 2
    assert tracker.optimal_window([100] * 3) == 3
    assert tracker.optimal_window([600] * 3) == 1


def test_a_thread_looks_until_it_is_stopped():
    seen = threading.Event()
    free = [500]
    tracker = tracker_over(free)
    tracker.on_change(lambda _: seen.set())
    tracker.start(0.001)
    free[0] = 0
    assert seen.wait(60)
    tracker.stop()
    tracker.stop()


def test_levels_that_do_not_descend_are_refused():
    with pytest.raises(UsageError, match="descending"):
        PressureLimits(high=1, critical=2, oom=0)
