"""Callers: what a request may be, given whose it is."""

import pytest

from zse.serve.access.caller import ANYBODY, MAX_PRIORITY, Caller, caller_of
from zse.serve.http.shell import in_shell

ALICE = Caller(key_id="a1", name="alice", scope="inference", max_priority=5)
BOB = Caller(key_id="b2", name="bob", scope="inference")


@pytest.mark.parametrize("salt", [None, "", "team", "b2:", ":"])
def test_two_callers_never_share_a_salt(salt):
    others = [BOB.salt_of(each) for each in (None, "", "team", "a1:", ":", "b2:")]
    others += [ANYBODY.salt_of(each) for each in (None, "", "team", "a1:", "a1:team", "b2:")]
    assert ALICE.salt_of(salt) not in others


def test_one_caller_shares_its_prefixes_unless_it_says_otherwise():
    assert ALICE.salt_of(None) == ALICE.salt_of("")
    assert ALICE.salt_of("x") != ALICE.salt_of("y")
    assert ANYBODY.salt_of(None) == ""


def test_nobody_is_more_urgent_than_their_key_allows():
    assert ALICE.priority_of(100) == 5
    assert ALICE.priority_of(-100) == -100
    assert ANYBODY.priority_of(MAX_PRIORITY) == MAX_PRIORITY


def test_who_asks_for_no_priority_has_that_of_the_key():
    assert Caller(key_id="c3", priority=7, max_priority=7).priority_of(None) == 7
    assert ALICE.priority_of(None) == 0


def test_admins_may_do_everything_and_others_one_thing():
    assert [ANYBODY.may(scope) for scope in ("inference", "metrics", "admin")] == [True] * 3
    assert [ALICE.may(scope) for scope in ("inference", "metrics", "admin")] == [True, False, False]


def test_requests_of_every_kind_know_their_caller_before_a_route_is_chosen(state, runner):
    seen = []

    async def note(scope, receive, send):
        seen.append(caller_of(scope))

    shell = in_shell(note, state=state)
    for kind in ("http", "websocket"):
        scope = {"type": kind, "method": "GET", "path": "/nowhere", "headers": []}
        runner.run(shell(scope, None, None))
    assert seen == [ANYBODY, ANYBODY]
