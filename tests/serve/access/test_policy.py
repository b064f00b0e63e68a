"""Who may come in."""

import pytest

from zse.serve.access.caller import ANYBODY, STRANGER
from zse.serve.access.policy import InvalidKeyError
from zse.serve.access.rules import scope_needed

CHAT = "/v1/chat/completions"


def outcome(access, path, *shown):
    refusal = access.decide(path, [each.encode() for each in shown]).refusal
    return 200 if refusal is None else refusal.http_status


def test_on_loopback_without_keys_everybody_may_do_everything(access):
    here = access(is_local=True)
    assert [outcome(here, path) for path in (CHAT, "/api/audit/clear", "/metrics")] == [200] * 3
    assert here.decide(CHAT, [b"unused"]).caller is ANYBODY


def test_elsewhere_nothing_is_answered_without_a_key(access):
    there = access()
    assert [outcome(there, path) for path in (CHAT, "/", "/docs", "/metrics")] == [401] * 4
    assert outcome(there, "/health/live") == outcome(there, "/ping") == 200


def test_once_a_key_exists_loopback_asks_too_but_for_metrics(access, add_key):
    secret = add_key()
    here = access(is_local=True)
    assert outcome(here, CHAT) == outcome(here, "/") == outcome(here, "/unknown") == 401
    assert outcome(here, CHAT, secret) == outcome(here, "/metrics") == 200
    assert here.decide(CHAT, [secret.encode()]).caller.name == "alice"


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("inference", {CHAT}), ("metrics", {"/metrics"}), ("admin", {CHAT, "/metrics", "/api/keys"})],
)
def test_a_key_opens_its_scope_and_nothing_else(access, add_key, scope, allowed):
    secret = add_key(scope=scope)
    for path in (CHAT, "/metrics", "/api/keys"):
        assert outcome(access(), path, secret) == (200 if path in allowed else 403)


@pytest.mark.parametrize(
    "path",
    ["/new/route", "/api/anything", "/v1", "/V1/models", "//v1/models", "/health/", "/pingx", ""],
)
def test_a_path_that_no_rule_names_is_for_admins(path):
    assert scope_needed(path) == "admin"


def test_behind_a_gate_all_but_administration_is_open_until_a_key_exists(access, add_key):
    assert (
        outcome(access(is_public=True), CHAT) == outcome(access(is_public=True), "/metrics") == 200
    )
    assert access(is_public=True).decide(CHAT, []).caller is STRANGER
    assert outcome(access(is_public=True), "/api/keys") == 401
    secret = add_key(scope="admin")
    assert outcome(access(is_public=True), CHAT) == 401
    assert outcome(access(is_public=True), "/api/keys", secret) == 200


def test_keys_that_are_disabled_or_expired_open_nothing(access, add_key, key_file, clock):
    from msgspec.structs import replace

    old = add_key("old", expires=int(clock.seconds) + 10)
    off = add_key("off")
    key_file.update("off", lambda key: replace(key, enabled=False))
    there = access()
    assert outcome(there, CHAT, old) == 200
    clock.seconds += 10
    assert outcome(there, CHAT, old) == outcome(there, CHAT, off) == 401
    decision = there.decide(CHAT, [off.encode()])
    assert (decision.caller.name, str(decision.refusal)) == (
        "off",
        "The API key 'off' is disabled.",
    )


def test_asking_can_be_switched_off_on_this_machine_only(access, add_key, key_file):
    from msgspec.structs import replace

    secret = add_key()
    key_file.change(lambda table: replace(table, enabled=False))
    assert outcome(access(is_local=True), CHAT) == 200
    assert outcome(access(is_public=True), CHAT) == 200
    assert outcome(access(), CHAT) == 401
    known = access(is_local=True).decide(CHAT, [secret.encode()])
    assert known.caller.name == "alice"


def test_any_good_key_among_those_shown_lets_in(access, add_key):
    secret = add_key()
    assert outcome(access(), CHAT, "proxy-token-of-a-gateway", secret) == 200
    assert outcome(access(), CHAT, "wrong-key-one", "wrong-key-two") == 401


def test_who_came_in_long_ago_is_held_against_the_keys_of_now(access, add_key, key_file, clock):
    gone = add_key("gone").encode()
    old = add_key("old", expires=int(clock.seconds) + 60).encode()
    there = access()
    callers = [there.decide(CHAT, [secret]).caller for secret in (gone, old)]
    for caller in (*callers, ANYBODY):
        there.check_again(caller)
    key_file.update("gone", lambda _: None)
    clock.seconds += 60
    for caller in callers:
        with pytest.raises(InvalidKeyError, match="lets in no longer"):
            there.check_again(caller)


def test_how_busy_it_is_may_be_open_to_all_and_nothing_else_with_it(access, add_key):
    add_key()
    opened = access(shows_measures=True)
    assert [outcome(opened, path) for path in ("/metrics", "/load")] == [200, 200]
    assert [outcome(opened, path) for path in (CHAT, "/api/stats", "/api/keys")] == [401] * 3
