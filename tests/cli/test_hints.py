"""What errors advise to type: every ``zse`` command in a text of ours has the options it is given."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from zse.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2] / "zse"
CALL = re.compile(rf"\bzse ({'|'.join(map(re.escape, COMMANDS))})\b([^`|;&),\n]*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
LONGEST = 600
"""Longer texts are documents and scripts, which have tests of their own."""


def calls_in(path: Path) -> list[tuple[str, str, list[str]]]:
    """Return each command in a module's texts: with its place, its words and its flags."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", f"{call[1]}{call[2]}", flags)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(node.value) < LONGEST
        for call in CALL.finditer(node.value)
        if (flags := FLAG.findall(call[2].partition(". ")[0]))
    ]


def flags_of(words: list[str]) -> set[str]:
    """Return the flags of the command that some words begin with."""
    command: Any = cli
    for word in words:
        if not isinstance(command, TyperGroup):
            break
        found = command.get_command(typer.Context(command, info_name="zse"), word)
        if found is None:
            break
        command = found
    context = typer.Context(command, info_name="zse")
    return {
        name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)
    }


def test_commands_in_our_texts_have_the_options_that_they_are_given() -> None:
    calls = [call for path in sorted(ROOT.rglob("*.py")) for call in calls_in(path)]
    wrong = [
        f"{place}: zse {words.strip()}"
        for place, words, flags in calls
        if not set(flags) <= flags_of(words.split())
    ]
    assert len(calls) > 20
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "is_right"), [("convert --merge-lora A", True), ("convert --lora A", False)]
)
def test_a_wrong_option_is_seen(words: str, is_right: bool) -> None:
    assert (set(FLAG.findall(words)) <= flags_of(words.split())) is is_right
