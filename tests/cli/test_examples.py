"""Examples of help: each is a line that the command of its name reads, and fits a terminal."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from zse import cli
from zse.cli import run
from zse.cli.examples import EXAMPLES, example_lines

LINES = [(name, line) for name, rows in EXAMPLES.items() for line, _ in rows]


@pytest.mark.parametrize(("name", "line"), LINES, ids=[line for _, line in LINES])
def test_an_example_is_a_line_that_its_command_reads(name: str, line: str) -> None:
    words = shlex.split(line.rpartition(" | ")[2])
    assert words[: 1 + len(name.split())] == ["zse", *name.split()]
    command: Any = cli.cli
    context, rest = typer.Context(command, info_name="zse"), words[1:]
    while isinstance(command, TyperGroup):
        command = command.get_command(context, rest.pop(0))
        assert command is not None
    command.make_context("zse", rest, parent=context)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_fit_a_terminal_and_stand_in_the_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    for line in example_lines(name):
        assert f"  {line}" in shown
        assert len(line) <= 76


def test_no_line_about_a_command_is_cut_in_the_list_that_it_stands_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = typer.Context(cli.cli, info_name="zse")
    groups = [
        name
        for name in cli.cli.list_commands(root)
        if isinstance(cli.cli.get_command(root, name), TyperGroup)
    ]
    for name in groups:
        assert run([name, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:")[2]
        assert "..." not in listed, name
