"""``zse config``."""

import json

import pytest

from zse.cli import run


@pytest.fixture
def config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = run(["config", *words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def origins(config):
    def ask(*flags):
        return {k: v["origin"] for k, v in json.loads(config("show", "--json", *flags)[1]).items()}

    return ask


def test_each_value_says_who_said_it_and_the_strongest_wins(config, tmp_path, monkeypatch):
    (tmp_path / "zse.toml").write_text('port = 1\nmax_queue = 2\nlog_level = "debug"\n')
    monkeypatch.setenv("ZSE_MAX_QUEUE", "3")
    monkeypatch.setenv("ZSE_LOG_LEVEL", "error")
    found = json.loads(config("show", "--json", "--log-level", "warning")[1])
    assert found["port"] == {"value": 1, "origin": "zse.toml"}
    assert found["max_queue"] == {"value": 3, "origin": "ZSE_MAX_QUEUE"}
    assert found["log_level"] == {"value": "warning", "origin": "flag"}
    assert found["max_context"] == {"value": 0, "origin": "default"}


def test_a_variable_by_another_name_is_told_by_the_one_that_was_set(origins, monkeypatch):
    monkeypatch.setenv("PORT", "7")
    assert origins()["port"] == "PORT"


def test_a_folder_that_moves_others_is_said_for_each(origins, monkeypatch, tmp_path):
    monkeypatch.delenv("ZSE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert origins()["cache_dir"] == "XDG_CACHE_HOME"


def test_secrets_and_passwords_are_hidden(config, monkeypatch):
    monkeypatch.setenv("ZSE_API_KEYS", "canary-of-a-key")
    monkeypatch.setenv("HF_TOKEN", "canary-of-a-token")
    monkeypatch.setenv("https_proxy", "http://me:canary@proxy:1")
    for flags in (["--json"], []):
        words = ["show", *flags, "--limits-storage", "redis://:canary@host:1/0"]
        code, out, _ = config(*words)
        assert code == 0
        assert "canary" not in out
        assert "redis://(hidden)@host:1/0" in out
        assert "http://(hidden)@proxy:1" in out


def test_one_option_or_what_was_changed_can_be_asked_for(config, monkeypatch):
    monkeypatch.setenv("ZSE_MAX_QUEUE", "3")
    assert config("show", "max_queue")[1] == "max_queue  3  (ZSE_MAX_QUEUE)\n"
    changed = json.loads(config("show", "--changed", "--json", "--host", "::1")[1])
    assert {"max_queue", "host"} <= set(changed)
    assert "port" not in changed
    code, _, err = config("show", "max_cue")
    assert code == 2
    assert "no option 'max_cue'" in err


def test_the_files_are_named_the_strongest_last(config, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert config("path")[1] == ""
    (tmp_path / "home" / "zse").mkdir(parents=True)
    (tmp_path / "home" / "zse" / "zse.toml").write_text("port = 1\n")
    (tmp_path / "zse.toml").write_text("port = 2\n")
    files = [str(tmp_path / "home" / "zse" / "zse.toml"), str(tmp_path / "zse.toml")]
    assert json.loads(config("path", "--json")[1]) == files
    assert config("path")[1].splitlines() == files


def test_what_is_wrong_is_an_error_here_too(config, monkeypatch):
    monkeypatch.setenv("ZSE_PORT", "many")
    code, _, err = config("show")
    assert code == 2
    assert "ZSE_PORT='many'" in err
