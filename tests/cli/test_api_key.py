"""``zse api-key``."""

import json
import re

import pytest

from zse.cli import run
from zse.cli.api_key import parse_moment
from zse.errors import UsageError
from zse.serve.access.key_file import KeyFile


@pytest.fixture
def api_key(home, capsys):
    """Runs a command; returns its exit code, stdout and stderr."""

    def call(*words):
        code = run(["api-key", *words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def file(home):
    return KeyFile(home / "api_keys.json")


def test_a_new_key_is_all_that_stdout_says(api_key, file):
    code, out, err = api_key("create", "my-app", "--rate-limit", "60")
    assert code == 0
    assert re.fullmatch(r"zse-[A-Za-z0-9_-]{43}\n", out)
    assert "shown this once" in err
    assert out.strip() not in err
    assert file.read().keys[0].rate_limit == 60


def test_a_list_without_keys_says_who_is_asked_for_one(api_key):
    code, out, err = api_key("list")
    assert (code, out) == (0, "")
    assert "no keys: a server that only this machine reaches asks for none" in err


def test_a_new_key_has_what_was_asked_for(api_key):
    flags = ["--scope", "admin", "--tokens-per-minute", "9000", "--expires", "2999-12-31"]
    _, out, _ = api_key("create", "root", *flags, "--priority", "7", "--weight", "3", "--json")
    facts = json.loads(out)
    assert facts["key"].startswith("zse-")
    asked = ("name", "scope", "tokens_per_minute", "expires", "priority", "weight", "state")
    wanted = ["root", "admin", 9000, 32503593600, 7, 3, "active"]
    assert [facts[name] for name in asked] == wanted
    assert "sha256" not in facts


def test_the_list_shows_limits_and_states_but_no_key(api_key):
    _, secret, _ = api_key("create", "one", "--rate-limit", "60")
    api_key("create", "two")
    api_key("disable", "two")
    code, out, err = api_key("list")
    assert code == 0
    assert re.search(r"^one +inference +active +60 +- +never", out, re.M)
    assert re.search(r"^two +inference +disabled", out, re.M)
    assert "2 keys" in err
    assert secret.strip() not in out
    _, out, _ = api_key("list", "--json")
    report = json.loads(out)
    assert report["enabled"] is True
    assert [key["name"] for key in report["keys"]] == ["one", "two"]


def test_a_key_is_disabled_enabled_reset_and_deleted(api_key, file):
    api_key("create", "app")
    assert api_key("disable", "app")[0] == 0
    assert file.read().find("app").enabled is False
    assert json.loads(api_key("enable", "app", "--json")[1]) == {"name": "app", "enabled": True}
    assert file.read().find("app").enabled is True
    api_key("reset", "app")
    assert file.read().find("app").num_resets == 1
    assert api_key("delete", "app")[0] == 0
    assert file.read().keys == ()


def test_without_a_name_asking_itself_is_switched(api_key, file):
    assert api_key("disable")[0] == 0
    assert file.read().enabled is False
    api_key("enable")
    assert file.read().enabled is True


@pytest.mark.parametrize("command", ["delete", "enable", "disable", "reset"])
def test_a_name_that_is_not_there_ends_with_3(api_key, command):
    code, _, err = api_key(command, "nobody")
    assert code == 3
    assert "no API key 'nobody'" in err


def test_moments_are_spans_or_dates():
    assert parse_moment("30d", now=1000) == 1000 + 30 * 86400
    assert parse_moment("90m", now=1000) == 1000 + 5400
    assert parse_moment("1970-01-02", now=0) == 86400
    assert parse_moment("1970-01-01T02:00:00+01:00", now=0) == 3600


@pytest.mark.parametrize("text", ["soon", "", "-1d", "1960-01-01", "0d", "2030-13-01"])
def test_moments_that_are_none_or_have_passed_are_refused(text):
    with pytest.raises(UsageError):
        parse_moment(text, now=1000)
