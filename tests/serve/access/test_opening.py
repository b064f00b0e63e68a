"""A start comes to its keys."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from zse.errors import RefusedError
from zse.option import with_values
from zse.serve.access.opening import open_access
from zse.settings import Settings

KEY = re.compile(r"zse-[A-Za-z0-9_-]{43}")


@pytest.fixture
def settings(tmp_path):
    return replace(Settings(), home=tmp_path / "home")


def test_on_loopback_no_key_is_made(settings):
    opened = open_access(settings, is_local=True)
    assert opened.notice == ""
    assert not settings.home.exists()


def test_elsewhere_the_first_start_makes_a_key_for_admins_and_shows_it_once(settings):
    notice = open_access(settings, is_local=False).notice
    secret = KEY.search(notice)[0]
    again = open_access(settings, is_local=False)
    assert again.notice == ""
    assert again.access.decide("/api/keys", [secret.encode()]).caller.name == "first"


def test_where_nothing_can_be_written_the_key_lives_as_long_as_the_process(settings):
    nowhere = replace(settings, home=Path("/proc/zse"))
    opened = open_access(nowhere, is_local=False)
    assert "ends with this process" in opened.notice
    secret = KEY.search(opened.notice)[0]
    assert opened.access.decide("/v1/models", [secret.encode()]).refusal is None


def test_no_key_is_made_where_there_is_one_or_a_gate_in_front(settings, tmp_path):
    public = with_values(settings, {"public": True})
    assert open_access(public, is_local=False).notice == ""
    given = with_values(settings, {"api_keys": "admin:sk-of-operators"})
    opened = open_access(given, is_local=False)
    assert opened.notice == ""
    assert opened.access.decide("/api/keys", [b"sk-of-operators"]).refusal is None
    (tmp_path / "secret").write_text("sk-from-a-mount")
    mounted = with_values(settings, {"api_keys_file": str(tmp_path / "secret")})
    assert open_access(mounted, is_local=False).notice == ""


def test_a_file_that_cannot_be_trusted_ends_a_start(settings):
    settings.home.mkdir()
    (settings.home / "api_keys.json").write_text("{}")
    (settings.home / "api_keys.json").chmod(0o666)
    with pytest.raises(RefusedError, match="open to others"):
        open_access(settings, is_local=False)
