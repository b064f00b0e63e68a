"""The page of keys: what it changes, and that nobody closes the door behind themselves."""

import re

import pytest
from person import Person

from zse.serve.access.keyring import Keyring
from zse.serve.access.policy import Access


@pytest.fixture
def open_server(state, make_caller, key_file):
    """A server on this machine that asks nobody for a key, until there is one."""
    state.access = Access(Keyring(key_file=key_file), is_local=True)
    return make_caller()


def guest_asks(call, path, **fields):
    csrf = re.search(r'name="csrf" content="([^"]*)"', call("GET", "/keys").text).group(1)
    headers = {"x-csrf-token": csrf, "sec-fetch-site": "same-origin"}
    return call("POST", path, data=fields, headers=headers)


def test_a_key_is_made_with_its_limits_and_shown_once(log_in, key_file):
    boss = log_in()
    form = {"name": "app", "scope": "inference", "rate_limit": "60", "days": "30"}
    page = boss.ask("POST", "/ui/keys", data=form).text
    key = key_file.read().find("app")
    assert (key.scope, key.rate_limit, key.tokens_per_minute) == ("inference", 60, 0)
    assert key.expires - key.created == pytest.approx(30 * 86_400, abs=5)
    secret = re.search(r"zse-[\w-]{43}", page).group()
    assert secret not in boss.get("/keys").text


def test_what_no_key_can_be_is_said_on_the_page(log_in):
    boss = log_in()
    for fields, words in (
        ({"name": "boss"}, "already"),
        ({"name": "<script>"}, "cannot be like this"),
        ({"name": "x", "scope": "root"}, "the scope is"),
        ({"name": "x", "rate_limit": "-1"}, "expected a whole number"),
        ({"name": "x", "days": "9" * 20}, "expected a whole number"),
    ):
        page = boss.ask("POST", "/ui/keys", data=fields)
        assert (page.status_code, words in page.text) == (200, True), fields
        assert "<script>" not in page.text


def test_a_key_is_limited_switched_off_and_on_and_revoked(log_in, add_key, key_file):
    boss = log_in()
    add_key("app")
    limits = {"name": "app", "rate_limit": "5", "tokens_per_minute": "900"}
    boss.ask("POST", "/ui/keys/limit", data=limits)
    key = key_file.read().find("app")
    assert (key.rate_limit, key.tokens_per_minute) == (5, 900)
    boss.ask("POST", "/ui/keys/disable", data={"name": "app"})
    assert not key_file.read().find("app").enabled
    boss.ask("POST", "/ui/keys/enable", data={"name": "app"})
    assert key_file.read().find("app").enabled
    boss.ask("POST", "/ui/keys/revoke", data={"name": "app"})
    assert key_file.read().find("app") is None
    assert boss.ask("POST", "/ui/keys/explode", data={"name": "boss"}).status_code == 404


@pytest.mark.parametrize("what", ["disable", "revoke"])
def test_nobody_takes_the_key_away_that_they_came_in_with(log_in, add_key, key_file, what):
    boss = log_in()
    page = boss.ask("POST", f"/ui/keys/{what}", data={"name": "boss"}).text
    assert "no key would be left that administers" in page
    add_key("second", scope="admin")
    page = boss.ask("POST", f"/ui/keys/{what}", data={"name": "boss"}).text
    assert "this would lock you out" in page
    assert key_file.read().find("boss").enabled
    assert boss.get("/keys").status_code == 200


def test_the_first_key_administers_and_logs_its_maker_in(open_server, key_file):
    refused = guest_asks(open_server, "/ui/keys", name="app", scope="inference")
    assert "no key would be left that administers" in refused.text
    assert key_file.read().keys == ()
    made = guest_asks(open_server, "/ui/keys", name="boss", scope="admin")
    cookie = made.headers["set-cookie"].partition(";")[0]
    assert open_server("GET", "/keys").status_code == 401
    assert open_server("GET", "/keys", headers={"cookie": cookie}).status_code == 200


def test_who_is_not_logged_in_does_not_close_the_page_to_themselves(open_server, add_key, key_file):
    secret = add_key("boss", scope="admin")
    boss = Person(open_server, secret)
    boss.ask("POST", "/ui/keys/asking", data={"enabled": "0"})
    assert not key_file.read().enabled
    assert "Log in" in guest_asks(open_server, "/ui/keys/asking", enabled="1").text
    assert not key_file.read().enabled
    boss.ask("POST", "/ui/keys/asking", data={"enabled": "1"})
    assert key_file.read().enabled
    assert boss.get("/keys").status_code == 200


def test_without_the_token_of_a_page_nothing_changes_even_where_no_key_is_asked_for(
    open_server, key_file
):
    form = {"name": "boss", "scope": "admin", "enabled": "1"}
    for path in ("/ui/keys", "/ui/keys/revoke", "/ui/keys/asking", "/logout"):
        for token in ("", "wrong"):
            answer = open_server("POST", path, data=form, headers={"x-csrf-token": token})
            assert answer.status_code == 403, path
    assert key_file.read().keys == ()


def test_a_page_of_another_site_changes_nothing_with_the_right_token(open_server, key_file):
    csrf = re.search(r'name="csrf" content="([^"]*)"', open_server("GET", "/keys").text).group(1)
    headers = {"x-csrf-token": csrf, "origin": "https://evil.example"}
    form = {"name": "boss", "scope": "admin"}
    assert open_server("POST", "/ui/keys", data=form, headers=headers).status_code == 403
    assert key_file.read().keys == ()
