"""One style for every error: what was typed wrong, what went wrong, what nobody thought of."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.cli import COMMANDS, cli, run
from zse.cli.app import App, command_of
from zse.cli.error_output import as_json, show_error
from zse.errors import ContextLengthError, NotFoundError, ZSEError

if TYPE_CHECKING:
    from pathlib import Path


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = run(words)
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("convrt", "no such command 'convrt'", "Did you mean `zse convert`?"),
        ("image inspct x", "no such command 'inspct'", "Did you mean `zse image inspect`?"),
        ("qqqq", "no such command 'qqqq'", "See `zse --help`."),
        ("run tiny", "no such command 'run'", "Did you mean `zse chat`?"),
        ("rm qwen", "no such command 'rm'", "Did you mean `zse cache clean`?"),
        (
            "serve --model tiny",
            "no such option '--model'",
            "MODEL is an argument, not an option: zse serve tiny",
        ),
        (
            "chat --model=tiny",
            "no such option '--model'",
            "MODEL is an argument, not an option: zse chat tiny",
        ),
        (
            "inspect --model",
            "no such option '--model'",
            "MODEL is an argument, not an option: zse inspect MODEL",
        ),
        (
            "serve --prot 1",
            "no such option '--prot'",
            "Did you mean --port? See `zse serve --help`.",
        ),
        (
            "serve tiny --api-key x",
            "no such option '--api-key'",
            "Make one with `zse api-key create NAME`, or put it into ZSE_API_KEYS.",
        ),
        (
            "inspect",
            "missing argument 'MODEL'",
            "For example `zse inspect qwen.zse`. See `zse inspect --help`.",
        ),
        (
            "api-key",
            "missing command",
            "Name one: create, list, delete, enable, disable, reset, status. "
            "See `zse api-key --help`.",
        ),
        (
            "completion",
            "missing argument 'SHELL': one of bash, zsh, fish, powershell",
            "See `zse completion --help`.",
        ),
        (
            "serve --port x",
            "invalid value for '--port': 'x' is not a valid integer",
            "See `zse serve --help`.",
        ),
    ],
)
def test_what_was_typed_wrong_is_said_with_what_was_meant(
    words: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(words.split(), capsys) == (2, [f"error: {error}", f"hint: {hint}"])


def test_with_json_the_error_is_an_object_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.zse"
    assert run(["inspect", str(path), "--json"]) == NotFoundError.exit_code
    captured = capsys.readouterr()
    found = json.loads(captured.err)["error"]
    assert (found["code"], found["exit_code"]) == ("not_found", 3)
    assert found["message"].startswith("there is no file ")
    assert found["hint"]
    assert captured.out == ""


def test_a_usage_error_with_json_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage"


def test_the_code_of_an_error_is_the_name_of_its_class() -> None:
    assert as_json(ContextLengthError("x"))["code"] == "context_length"
    assert as_json(ZSEError("x"))["code"] == "zse"


@pytest.fixture
def broken_command(monkeypatch: pytest.MonkeyPatch) -> str:
    app = App()

    @app.command()
    def command() -> None:
        raise ValueError("first line\nsecond line")

    monkeypatch.setattr(type(cli), "get_command", lambda *_: command_of(app))
    return "broken"


def test_a_defect_is_a_sentence_and_leads_to_its_trace(
    broken_command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = said([broken_command], capsys)
    assert code == 1
    assert lines[0].startswith("error: ValueError: first line (zse/cli/")
    assert "ZSE_DEBUG=1" in lines[1]
    assert len(lines) == 2


def test_debugging_shows_the_trace(
    broken_command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZSE_DEBUG", "1")
    code, lines = said([broken_command], capsys)
    assert code == 1
    assert lines[0].startswith("Traceback")
    assert lines[-2].startswith("error: ValueError: first line (zse/cli/")


def test_an_error_is_shown_even_when_the_environment_is_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZSE_PORT", "many")
    code, lines = said(["serve"], capsys)
    assert code == 2
    assert lines[0] == "error: ZSE_PORT='many' is not a whole number"


def on_a_terminal(**variables: str) -> str:
    """Return what ``zse convrt`` writes on a terminal."""
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "zse", "convrt"]
    subprocess.run(command, stdout=inner, stderr=inner, env=environment, check=False)
    os.close(inner)
    text = os.read(outer, 4096).decode()
    os.close(outer)
    return text


def test_errors_have_colour_on_a_terminal_unless_it_is_declined() -> None:
    assert "\x1b[31m" in on_a_terminal(NO_COLOR="")
    assert "\x1b" not in on_a_terminal(NO_COLOR="1")


def test_help_of_a_command_is_the_same_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "image", "inspect"]) == 0
    asked = capsys.readouterr().out
    assert run(["image", "inspect", "--help"]) == 0
    assert asked == capsys.readouterr().out


def test_help_alone_lists_the_commands_and_help_of_nothing_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)
    assert said(["help", "convrt"], capsys)[0] == 2
    assert said(["help", "convert", "more"], capsys)[0] == 2


def test_what_an_error_quotes_does_not_command_the_terminal(capsys):
    show_error(ZSEError("the registry said \x1b[2J", hint="one\ntwo\x9b"))
    assert capsys.readouterr().err == "error: the registry said \\u001b[2J\nhint: one\ntwo\\u009b\n"
