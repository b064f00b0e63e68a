"""A step that is late and a standby that lacks something: waited for while there is a reason to."""

from __future__ import annotations

from types import SimpleNamespace

from zse.mesh.duties import Duty
from zse.mesh.lateness import Feeding, Gap, holder_of, is_at_work
from zse.mesh.messages import NodeState, StageState

DUTIES = (
    Duty(first_layer=0, end_layer=2, node="a", standby="b"),
    Duty(first_layer=2, end_layer=4, node="b", standby="a"),
)


def node(name, *stages, at=100.0, **state):
    return SimpleNamespace(name=name, state=NodeState(7, list(stages), **state), state_time=at)


def test_a_standby_that_is_being_fed_is_waited_for_however_long_that_takes():
    """Keys and values of hours cross a slow wire: to begin anew each 5 s would never end."""
    feeding, now = Feeding(), 100.0
    for num_fed in range(60):
        now += 4.0
        peers = [node("a", StageState(2, 4, False, 0, num_fed=num_fed)), node("b")]
        assert not feeding.is_starved(DUTIES, {(0, 2)}, peers, order_time=100.0, now=now)
    assert not feeding.is_starved(DUTIES, {(0, 2)}, peers, order_time=100.0, now=now + 4.9)
    assert feeding.is_starved(DUTIES, {(0, 2)}, peers, order_time=100.0, now=now + 5.1)
    assert not feeding.is_starved(DUTIES, {(0, 2)}, peers, order_time=now + 1, now=now + 5.5)
    assert not feeding.is_starved(DUTIES, {(0, 2), (2, 4)}, peers, order_time=0.0, now=now + 90)


def test_who_computes_a_step_or_sends_its_rows_is_at_work_if_it_said_so_lately():
    assert is_at_work([node("a"), node("b", computing=5)], 5, 7, 100.5)
    assert not is_at_work([node("a"), node("b", computing=4)], 5, 7, 100.5)
    assert is_at_work([node("a", sending=["rows"])], 5, 7, 100.5)
    assert not is_at_work([node("a", sending=["blocks"])], 5, 7, 100.5)
    assert not is_at_work([node("a", sending=["rows"])], 5, 8, 100.5)  # of an older order
    assert not is_at_work([node("a", sending=["rows"])], 5, 7, 101.5)  # a second ago


def test_a_step_waits_for_the_first_that_has_not_computed_it_or_for_a_slow_wire_to_it():
    def holder(a_done, b_done, b_silent=0.0, a_silent=0.0):
        peers = {
            "a": node("a", StageState(0, 2, True, a_done), at=100 - a_silent),
            "b": node("b", StageState(2, 4, True, b_done), at=100 - b_silent),
        }
        return holder_of(DUTIES, SimpleNamespace(by_name=peers), 5, 100.0)

    assert holder(4, 4) == "a"
    assert holder(5, 4) == "b"
    assert holder(5, 4, a_silent=0.2) == "a"
    assert holder(5, 4, b_silent=0.2) == "b"
    assert holder(5, 5) == "b"


def test_a_step_that_nobody_can_send_again_is_given_up_and_one_that_comes_late_is_not():
    gap = Gap()

    def peers(missing):
        stages = {"a": StageState(0, 2, True, 9), "b": StageState(2, 4, True, 4, missing=missing)}
        return SimpleNamespace(by_name={name: node(name, one) for name, one in stages.items()})

    assert not gap.is_hopeless(DUTIES, peers(5), 5, 100.0)
    assert not gap.is_hopeless(DUTIES, peers(5), 5, 102.9)
    assert gap.is_hopeless(DUTIES, peers(5), 5, 103.1)
    assert not gap.is_hopeless(DUTIES, peers(0), 5, 104.0)  # it came after all
    assert not gap.is_hopeless(DUTIES, peers(5), 5, 104.5)
    assert not gap.is_hopeless(DUTIES, peers(6), 6, 108.0)
    assert not gap.is_hopeless(DUTIES, peers(8), 7, 120.0)  # one that comes behind it


def test_a_step_that_was_answered_and_that_a_stage_lacks_holds_up_those_behind_it():
    gap = Gap()
    stages = {"a": StageState(0, 2, True, 9), "b": StageState(2, 4, True, 4, missing=5)}
    peers = SimpleNamespace(by_name={name: node(name, one) for name, one in stages.items()})
    assert not gap.is_hopeless(DUTIES, peers, 6, 100.0)
    assert gap.is_hopeless(DUTIES, peers, 6, 103.1)
