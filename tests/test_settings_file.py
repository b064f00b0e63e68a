"""``zse.toml`` says what the environment says, and less loudly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zse.errors import BadSettingError
from zse.option import options_of, with_flags
from zse.server_options import ServeOptions
from zse.settings import Settings, load_settings, subprocess_environment


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return what writes ``zse.toml`` into the current folder."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "zse.toml").write_text


def test_a_flag_wins_over_a_variable_and_that_over_the_folders_file_and_that_over_the_users(
    write, tmp_path
):
    users = tmp_path / "config" / "zse"
    users.mkdir(parents=True)
    (users / "zse.toml").write_text("max_queue = 1\nthreads = 1\nport = 1\nmax_context = 1\n")
    write("max_queue = 2\nthreads = 2\nport = 2\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "ZSE_THREADS": "3", "PORT": "3"}
    options = with_flags(load_settings(environment).serve, {"port": 4})
    assert (options.load.batch.max_context, options.max_queue) == (1, 2)
    assert (options.load.device.threads, options.port) == (3, 4)


def test_every_option_that_a_person_may_give_can_stand_there(write):
    written = {key: row for key, row in options_of(Settings).items() if row.by_hand}
    words = {bool: "true", str: '"info"', Path: '"folder"', tuple: '["a"]'}
    agreeing = {"gpus": '""'}  # where one device computes, none is named
    lines = [
        f'{key} = "{row.choices[0]}"'
        if row.choices
        else f"{key} = {agreeing.get(key) or words.get(row.kind, max(1, row.least))}"
        for key, row in written.items()
    ]
    write("\n".join(lines))
    settings = load_settings({})
    assert settings.serve.load.device.exact_activations
    assert settings.serve.drain_seconds == 1.0
    assert settings.serve != ServeOptions()


def test_the_file_that_the_environment_names_stands_for_the_folders(write, tmp_path):
    write("port = 2\n")
    named = tmp_path / "named.toml"
    named.write_text("port = 3\n")
    assert load_settings({"ZSE_CONFIG": str(named)}).serve.port == 3
    with pytest.raises(BadSettingError, match="ZSE_CONFIG='/no/such' is no file"):
        load_settings({"ZSE_CONFIG": "/no/such"})


def test_paths_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    (tmp_path / "named.toml").write_text('cache_dir = "cache"\n')
    settings = load_settings({"ZSE_CONFIG": str(tmp_path / "named.toml")})
    assert settings.cache_dir == tmp_path / "cache"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("max_contxt = 1", "max_contxt is no setting", "Did you mean max_context?"),
        ("ZSE_PORT = 1", "ZSE_PORT is no setting", "Did you mean port?"),
        ("[serve]", "serve is no setting", "Settings are model, host"),
        ('port = "80"', "port is '80', expected a whole number", "port = 8000"),
        ("threads = true", "threads is True, expected a whole number", "threads = 0"),
        ("port = 70000", "port is 70000, expected 0 to 65535", ""),
        ('kv_dtype = "int3"', "kv_dtype is 'int3', expected one of auto, fp32", ""),
        ('hf_token = "abc"', "hf_token may not stand in a file", "Set HF_TOKEN instead."),
        ('aws_region = "eu"', "aws_region may not stand in a file", "Set AWS_REGION instead."),
        ("port 8000", "is not TOML: Expected '=' after a key", ""),
        ('model = "\\ud800"', "is not TOML", ""),
    ],
)
def test_what_means_nothing_is_refused_with_the_file_the_key_and_what_is_expected(
    write, text, message, hint
):
    write(text)
    with pytest.raises(BadSettingError) as caught:
        load_settings({})
    assert caught.value.message.startswith("zse.toml")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_without_a_file_nothing_that_reads_one_is_imported(tmp_path):
    code = "import sys, zse.settings; zse.settings.load_settings(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=subprocess_environment(PYTHONPATH=str(Path(__file__).parents[1])),
    )
    assert not {"tomllib", "difflib", "zse.settings_file"} & set(done.stdout.split())


def test_a_file_holds_several_texts_as_a_list(write):
    write('allowed_host = ["a.example", "b.example"]\n')
    assert load_settings({}).serve.http.allowed_hosts == ("a.example", "b.example")
    write("allowed_host = [1]\n")
    with pytest.raises(BadSettingError, match="expected a list of texts"):
        load_settings({})
