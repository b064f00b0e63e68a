"""What a front knows of standbys: who could go on with a stage, and who could not after all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse.mesh.duties import Duty
from zse.mesh.finding import Finder
from zse.mesh.flight import Overdue
from zse.mesh.front import Front
from zse.mesh.messages import NodeState, StageState, StepHead
from zse.mesh.stage_host import StageHost

FIRST, SECOND = (0, 2), (2, 4)
DUTIES = (
    Duty(first_layer=0, end_layer=2, node="a", standby="b"),
    Duty(first_layer=2, end_layer=4, node="b", standby="a"),
)


@pytest.fixture
def front():
    front = Front(b"a secret of the tests", 100, Finder(list))
    front.duties, front.epoch, front._flight.answered = DUTIES, 7, 9
    for name in "ab":
        front.membership.joined(name, 0.0)
    return front


def told(front, name, *stages, epoch=7):
    state = NodeState(epoch, list(stages))
    front.peers.by_name[name] = SimpleNamespace(name=name, state=state, address=name)


def test_a_standby_that_lacks_what_no_log_has_any_more_is_not_ready(front):
    """Who takes a stage over begins a log: the next stage's standby may be behind its beginning."""
    told(front, "b", StageState(*FIRST, False, 9), StageState(*SECOND, True, 9, log_base=2))
    for base, done, expected in ((4, 3, {FIRST}), (4, 4, {FIRST, SECOND}), (0, 3, {FIRST, SECOND})):
        told(
            front, "a", StageState(*FIRST, True, 9, log_base=base), StageState(*SECOND, False, done)
        )
        assert front._ready() == expected


def test_nothing_is_sent_again_while_who_has_the_late_step_is_under_suspicion(front, monkeypatch):
    """All would do the same work again just before it goes to another."""
    orders = []
    monkeypatch.setattr(front, "_give_order", lambda: orders.append(front.epoch))
    late = Overdue(number=10, seconds=0.5, is_first=False)
    monkeypatch.setattr(front._flight, "overdue", lambda *_: late)
    for name in "ab":
        told(front, name, StageState(*FIRST, name == "a", 10), StageState(*SECOND, name == "b", 9))
        front.peers.by_name[name].state_time = 0.0
        front.peers.by_name[name].link = SimpleNamespace(is_closed=False)
    front.membership.heard("b", 0.7)
    front._look_at_steps(0.0, 1.0)
    assert orders == []  # it is silent, and was late before: it is not suspect yet
    front.membership.accused("b", 1.0)
    front._look_at_steps(0.0, 1.0)
    assert orders == []
    front.membership.heard("b", 1.1)
    front._look_at_steps(0.0, 1.1)
    assert orders == [7]


def test_steps_are_remembered_until_who_has_just_taken_a_stage_over_has_computed_them(front):
    """Later stages may have answered them already, out of what the lost node had sent on."""
    told(front, "a", StageState(*FIRST, True, 9), StageState(*SECOND, False, 8))
    told(front, "b", StageState(*FIRST, False, 9), StageState(*SECOND, True, 9))
    assert front._settled() == [9, 8]
    front._hand_over((DUTIES[0], Duty(first_layer=2, end_layer=4, node="a", standby="")))
    front.epoch = 8
    assert front._settled() == [9, 0]
    told(front, "a", StageState(*FIRST, True, 9), StageState(*SECOND, False, 8), epoch=8)
    assert front._settled() == [9, 0]  # it has not taken it over yet
    told(front, "a", StageState(*FIRST, True, 9), StageState(*SECOND, True, 8), epoch=8)
    assert front._settled() == [9, 8]
    told(front, "a", StageState(*FIRST, True, 12), StageState(*SECOND, True, 12), epoch=8)
    assert front._settled() == [9, 9]


def test_what_a_node_said_before_it_took_a_stage_over_does_not_count(front):
    told(front, "a", StageState(*FIRST, True, 9, log_base=1), StageState(*SECOND, False, 3))
    told(front, "b", StageState(*FIRST, False, 9), StageState(*SECOND, True, 9))
    assert front._ready() == {FIRST, SECOND}
    moved = (DUTIES[0].__class__(first_layer=0, end_layer=2, node="b", standby="a"), DUTIES[1])
    front._hand_over(moved)
    front.epoch = 8  # nobody has said anything of this order yet
    assert front._ready() == set()
    told(front, "a", StageState(*FIRST, False, 5), StageState(*SECOND, False, 3), epoch=8)
    assert front._ready() == {FIRST}
    told(front, "b", StageState(*FIRST, True, 9, log_base=9), StageState(*SECOND, True, 9), epoch=8)
    assert front._ready() == {FIRST}
    told(front, "a", StageState(*FIRST, False, 5), StageState(*SECOND, False, 9), epoch=8)
    assert front._ready() == {FIRST, SECOND}


def test_a_stage_says_where_its_log_begins_and_which_step_never_came():
    part = SimpleNamespace(stage=SimpleNamespace(first_layer=2, end_layer=4))
    host = StageHost(part)
    host.done = 7
    host.lead(answered=5)
    assert (host.state.done, host.state.log_base, host.state.missing) == (5, 5, 0)
    head = StepHead(1, 5, [0, 0], b"")
    assert not host.compute(8, head, memoryview(b""), [0, 0])
    assert host.state.missing == 6
    assert not host.compute(5, head, memoryview(b""), [0, 0])
    assert host.state.missing == 0
    host.follow()
    assert (host.state.done, host.state.is_primary) == (0, False)


def test_a_standby_that_is_to_begin_anew_says_so_before_anything_has_come():
    host = StageHost(SimpleNamespace(stage=SimpleNamespace(first_layer=2, end_layer=4)))
    host.done = 7
    host.follow(settled=7)
    assert host.state.done == 7
    host.follow(settled=0)
    assert host.state.done == 0


def test_a_node_that_is_just_coming_is_not_described_yet(front):
    state = NodeState()
    peer = SimpleNamespace(name="c", address="c", facts=None, state=state, state_time=0.0)
    front.peers.by_name["c"] = peer
    assert front.describe()["nodes"] == []
    front.membership.joined("c", 0.0)
    assert [one["name"] for one in front.describe()["nodes"]] == ["c"]
