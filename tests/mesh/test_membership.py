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
