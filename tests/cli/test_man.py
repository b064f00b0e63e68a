"""Manual pages: one for each command, of what its help says, in roff that roff reads."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from zse.cli import COMMANDS, run
from zse.cli.man_pages import _text

if TYPE_CHECKING:
    from pathlib import Path


def test_every_command_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", "-o", str(tmp_path / "man1")]) == 0
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"zse.1", "zse-cache-clean.1", *(f"zse-{name}.1" for name in COMMANDS)} <= names
    assert len(capsys.readouterr().out.split()) == len(names)
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    paths = sorted(map(str, (tmp_path / "man1").iterdir()))
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", *paths], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_a_page_says_how_a_command_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", "convert"]) == 0
    page = capsys.readouterr().out
    assert page.startswith('.TH "ZSE\\-CONVERT" 1')
    for words in (".SH SYNOPSIS\n.B zse convert", "\\-\\-quant", ".SH EXIT STATUS"):
        assert words in page


def test_no_page_of_what_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", "dance"]) == 2
    assert "no page of 'dance'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "roff"), [("a-b", "a\\-b"), (".x", "\\&.x"), ("'x", "\\&'x"), ("a\\b", "a\\eb")]
)
def test_words_are_printed_as_they_are(words: str, roff: str) -> None:
    assert _text(words) == roff
