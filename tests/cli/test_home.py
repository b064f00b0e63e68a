"""`zse` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse import __version__
from zse.cli import run

if TYPE_CHECKING:
    import pytest


def test_alone_it_says_what_is_here_and_ends_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.cli.home.answers", lambda _: False)
    assert run([]) == 0
    said = capsys.readouterr().out
    for words in ("cpu  ", "fits     up to ", "no server at http://127.0.0.1:8000", "zse --help"):
        assert words in said


def test_a_terminal_is_offered_a_model_and_a_talk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = []
    monkeypatch.setattr("zse.cli.home.answers", lambda _: False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "")
    monkeypatch.setattr("zse.cli.chat.open_here", lambda name, _: name)
    monkeypatch.setattr("zse.cli.chat.talk", lambda backend, _: talks.append(backend))
    assert run([]) == 0
    assert talks == ["tiny"]
    assert "answers in under a second" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    assert run([]) == 0
    narrow = capsys.readouterr().out.splitlines()[0]
    assert narrow == f"zse {__version__}", "no line of the banner is broken"


def test_a_server_that_runs_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.cli.home.answers", lambda _: True)
    monkeypatch.setattr(
        "zse.cli.home.StatsClient.stats", lambda _: {"models": [{"name": "coder-7b"}]}
    )
    assert run([]) == 0
    assert "coder-7b at http://127.0.0.1:8000" in capsys.readouterr().out
