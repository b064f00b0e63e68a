"""Who has slept does not take the silence of that time for anybody's."""

from __future__ import annotations

import time

import pytest

from zse.mesh.messages import Place
from zse.mesh.outgoing import Outgoing, _Way
from zse.mesh.wakefulness import Wakefulness


def test_looks_that_come_in_time_are_no_sleep() -> None:
    awake = Wakefulness(0.01, 0.1)
    assert not awake.is_asleep(5.0)
    assert [awake.look(now) for now in (5.0, 5.1, 5.15)] == [0.0, 0.0, 0.0]
    assert awake.since == 0.0


def test_a_sleep_ends_with_the_look_that_tells_its_length() -> None:
    awake = Wakefulness(0.01, 0.1)
    awake.look(5.0)
    assert awake.is_asleep(5.2)
    assert awake.look(6.5) == 1.5
    assert awake.since == 6.5
    assert not awake.is_asleep(6.6)


def test_how_late_a_process_ran_fades():
    awake = Wakefulness(0.05, 0.1)
    assert awake.late_seconds(5.0) == 0.0
    awake.look(5.0)
    awake.look(5.25)
    assert awake.late_seconds(5.25) == pytest.approx(0.2)
    for tick in range(1, 101):
        awake.look(5.25 + 0.05 * tick)
    assert awake.late_seconds(10.25) == pytest.approx(0.1)
    assert awake.late_seconds(10.25 + 3.0) == pytest.approx(2.95)  # it is late right now


class Way(_Way):
    """One that was last heard of at a time."""

    last_sign = 0.0
    has_unread = False


def test_a_node_that_slept_accuses_nobody_before_it_could_have_heard_of_them() -> None:
    ways = Outgoing(lambda *_: None)
    place = Place(0, 1, "b", "address")
    ways.keep([place], 1)
    way = ways._ways["rows", "address"] = Way()
    way.last_sign = time.monotonic() - 10.0
    assert ways.silent(0.25) == ["b"]
    way.has_unread = True
    assert ways.silent(0.25) == []  # it has spoken, and the thread that reads has not run
    way.has_unread = False
    ways._wakefulness.look(time.monotonic() - 5.0)
    assert ways.silent(0.25) == []  # it has not looked for 5 s
    ways._wakefulness.look(time.monotonic())
    assert ways.silent(0.25) == []  # it woke just now
    assert ways.silent(0.0) == ["b"]
