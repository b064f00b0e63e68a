from __future__ import annotations

from zse.mesh.membership import Membership, Patience, Standing

PATIENCE = Patience(silent_seconds=0.3, verdict_seconds=0.1)


def standing(members, name="a"):
    return members.members[name].standing


def test_who_is_silent_is_suspect_then_dead():
    members = Membership(PATIENCE)
    members.joined("a", 0.0)
    assert members.newly_suspect(0.3) == []
    assert members.newly_suspect(0.31) == ["a"]
    assert members.judged(0.40) == []
    assert members.judged(0.42) == ["a"]
    assert standing(members) is Standing.DEAD


def test_who_is_heard_again_in_time_is_alive():
    members = Membership(PATIENCE)
    members.joined("a", 0.0)
    members.newly_suspect(0.4)
    members.heard("a", 0.45)
    assert members.judged(1.0) == []
    assert standing(members) is Standing.ALIVE


def test_whom_a_peer_reaches_is_cut_off_and_not_dead():
    members = Membership(PATIENCE)
    members.joined("a", 0.0)
    members.newly_suspect(0.4)
    members.vouched("a", 1)
    members.judged(0.6)
    assert standing(members) is Standing.CUT_OFF


def test_what_was_said_of_an_earlier_life_is_void():
    members = Membership(PATIENCE)
    members.joined("a", 0.0)
    members.newly_suspect(0.4)
    members.joined("a", 0.41)
    members.accused("a", 0.42)
    members.vouched("a", 1)
    members.judged(0.6)
    assert standing(members) is Standing.DEAD


def test_the_dead_do_not_speak_but_may_join():
    members = Membership(PATIENCE)
    members.joined("a", 0.0)
    members.ended("a")
    members.heard("a", 0.1)
    assert standing(members) is Standing.DEAD
    members.joined("a", 0.2)
    assert members.alive() == ["a"]


def test_strangers_are_not_accused():
    members = Membership(PATIENCE)
    members.accused("x", 0.0)
    members.ended("x")
    members.vouched("x", 1)
    assert members.members == {}


def joined(*names, now=0.0):
    members = Membership(PATIENCE)
    for name in names:
        members.joined(name, now)
    return members


def reported(members, silent, *, start=2.0, seconds=0.5):
    """Return who is cut off by the same reports for some time."""
    now, found = start, ""
    while not found and now < start + seconds:
        for name in members.members:
            members.heard(name, now)
        found = members.cut_off(silent, now)
        now += 0.05
    return found


def heard_all_along(*names):
    members = joined(*names)
    for tick in range(40):
        for name in names:
            members.heard(name, tick * 0.05)
    return members


def test_whom_a_neighbour_misses_for_a_while_is_cut_off():
    members = heard_all_along("a", "b", "c")
    assert reported(members, {"a": ["b"], "b": [], "c": []}) == "b"
    assert members.cut_off({"a": ["c"]}, 2.6) == ""  # at first it is only said


def test_who_misses_several_is_cut_off_itself():
    members = heard_all_along("a", "b", "c")
    assert reported(members, {"a": ["b", "c"]}) == "a"


def test_who_slept_is_no_witness():
    members = heard_all_along("a", "b")
    members.heard("a", 3.0)
    assert reported(members, {"a": ["b"]}, start=3.05, seconds=0.8) == ""


def test_whose_work_nobody_can_take_stays_suspect():
    members = joined("a")
    members.newly_suspect(0.4)
    members.judged(0.6)
    members.spared("a", 0.6)
    assert standing(members) is Standing.SUSPECT
    members.heard("a", 0.65)
    assert standing(members) is Standing.ALIVE


def test_what_this_process_slept_through_is_nobodys_silence():
    members = joined("a", "b", now=0.9)
    members.heard("a", 0.95)
    members.accused("b", 0.98)
    members.overslept(2.0, 3.0)
    assert members.newly_suspect(3.2) == []
    assert members.judged(3.05) == []
    assert members.judged(3.1) == ["b"]
    assert members.newly_suspect(3.3) == ["a"]


def test_nobody_is_heard_in_the_future_after_a_sleep():
    members = joined("a", now=0.9)
    members.overslept(2.0, 1.0)
    assert members.newly_suspect(1.29) == []
    assert members.newly_suspect(1.31) == ["a"]
