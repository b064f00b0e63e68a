from __future__ import annotations

from itertools import count

from zse.mesh.membership import HOPELESS_SECONDS, Membership, Patience, Standing

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
    assert members.judged(0.55) == []  # it is there, and may only run late: twice the time
    members.judged(0.61)
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
    members = joined("a", "b", "c", now=0.9)
    members.heard("a", 0.95)
    members.accused("b", 0.98)
    members.overslept(2.0, 3.0)
    members.heard("c", 3.04)
    assert members.judged(3.05) == []
    members.heard("c", 3.1)
    assert members.judged(3.1) == ["b"]
    assert members.newly_suspect(3.2) == []
    assert members.newly_suspect(3.3) == ["a"]


def run_late(members, name, late_seconds, now):
    members.heard(name, now, late_seconds=late_seconds)


def test_who_says_that_it_runs_late_is_waited_for_longer_but_not_for_ever():
    members = joined("a", "b", "c")
    run_late(members, "a", 0.05, 1.0)
    run_late(members, "b", 0.0, 1.0)
    run_late(members, "c", 9.0, 1.0)
    assert members.newly_suspect(1.31) == ["b"]
    assert members.newly_suspect(1.39) == []
    assert members.newly_suspect(1.41) == ["a"]
    assert members.newly_suspect(1.54) == []
    assert members.newly_suspect(1.56) == ["c"]


def test_a_front_that_runs_late_itself_waits_longer_for_all():
    members = joined("a")
    members.late_seconds = 0.1
    members.heard("a", 1.0)
    assert members.newly_suspect(1.49) == []
    assert members.newly_suspect(1.51) == ["a"]


def test_a_time_in_which_nobody_was_heard_is_nobodys_silence():
    members = heard_all_along("a", "b")
    assert members.newly_suspect(2.5) == ["a", "b"]
    assert members.judged(3.0) == []  # all at once: it is more likely this machine
    members.heard("b", 3.0)
    assert members.judged(3.0) == []
    assert standing(members, "b") is Standing.ALIVE
    members.heard("b", 3.09)
    assert members.judged(3.09) == []
    members.heard("b", 3.18)
    assert members.judged(3.18) == ["a"]  # suspect for 0.1 s in which another spoke


def test_nodes_that_are_all_silent_are_given_up_in_the_end():
    members = heard_all_along("a", "b")
    members.newly_suspect(2.5)
    assert members.judged(1.95 + HOPELESS_SECONDS - 0.01) == []
    assert members.judged(1.95 + HOPELESS_SECONDS + 0.01) == ["a", "b"]


def test_whom_a_neighbour_misses_while_steps_are_answered_is_believed_only_after_a_while():
    members = heard_all_along("a", "b")
    answered = count(1)
    now, found = 2.0, ""
    while not found:
        for name in "ab":
            members.heard(name, now)
        found = members.cut_off({"a": ["b"]}, now, next(answered))
        now += 0.05
    assert found == "b"
    assert now - 2.0 > PATIENCE.insistence_seconds


def test_whom_one_misses_that_runs_late_is_believed_later():
    members = heard_all_along("a", "b")
    found, now = "", 2.0
    while not found:
        run_late(members, "a", 0.1, now)
        members.heard("b", now)
        found = members.cut_off({"a": ["b"]}, now)
        now += 0.05
    assert 2.0 + PATIENCE.accusation_seconds + 0.2 <= now - 0.05 < 2.5


def test_nobody_is_heard_in_the_future_after_a_sleep():
    members = joined("a", now=0.9)
    members.overslept(2.0, 1.0)
    assert members.newly_suspect(1.29) == []
    assert members.newly_suspect(1.31) == ["a"]
