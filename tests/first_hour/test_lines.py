"""Every line and program of the documents, held against the real commands, options and names."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

import pytest
import typer
from documents import NEEDS, Line, lines, need_of, programs, zse_calls
from typer.core import TyperGroup

from zse.cli import cli

# A reader is shown the form of a command, or a value to fill in.
SYNOPSIS = re.compile(r"\s\[|\bTARGET\b|\bIMAGE\|")


def parse(words: list[str]) -> None:
    """Let the command line parse a call: commands, options, values and the number of arguments."""
    command: Any = cli
    context = typer.Context(command, info_name="zse")
    rest = list(words)
    while isinstance(command, TyperGroup) and rest:
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        command = found
        if isinstance(command, TyperGroup):
            context = typer.Context(command, info_name=name, parent=context)
    command.make_context("zse", rest, parent=context)


CALLS = [(line, words) for line in lines() for words in zse_calls(line)]


def test_the_documents_show_what_to_type() -> None:
    assert len(CALLS) > 60
    assert len({line.page for line, _ in CALLS}) > 12
    assert len(programs()) >= 9


@pytest.mark.parametrize(
    "words", [pytest.param(w, id=str(line)) for line, w in CALLS if not SYNOPSIS.search(line.text)]
)
def test_a_line_parses_with_the_real_command(words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize(
    "words", [pytest.param(w, id=str(line)) for line, w in CALLS if SYNOPSIS.search(line.text)]
)
def test_a_synopsis_names_options_that_exist(words: list[str]) -> None:
    command = cli.get_command(typer.Context(cli), words[0])
    rest = [word.strip("[]") for word in words[1:]]
    while isinstance(command, TyperGroup):
        command = command.get_command(typer.Context(command), rest.pop(0))
    assert command is not None
    known = {name for one in command.params for name in one.opts}
    assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.parametrize("text", [pytest.param(text, id=page) for page, text in programs()])
def test_a_program_compiles_and_what_it_imports_is_there(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "zse":
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)


def test_what_a_line_needs_is_said_only_of_lines_that_there_are() -> None:
    unused = [rule for rule, _ in NEEDS if not any(re.search(rule, str(one)) for one in lines())]
    assert unused == []


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("zse serve tiny & zse chat  # then", [["serve", "tiny"], ["chat"]]),
        (".venv/bin/zse inspect a.zse > out", [["inspect", "a.zse"]]),
        ("echo zse serve", []),
    ],
)
def test_calls_of_a_line_are_found(text: str, calls: list[list[str]]) -> None:
    assert zse_calls(Line(page="a.md", text=text)) == calls


def test_a_line_that_needs_nothing_is_run_every_night() -> None:
    run = {str(line) for line in lines() if not need_of(line)}
    assert "README.md: .venv/bin/zse serve tiny &" in run
    assert "docs/guides/install.md: zse chat tiny" in run
