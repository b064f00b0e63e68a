"""Whoever types another server's option is led to ours, and the guide for them says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zse.cli import COMMANDS, others, run
from zse.option import options_of
from zse.server_options import ServeOptions

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
GUIDE = Path(__file__).parents[2] / "docs/guides/migrate.md"
OURS = {flag for row in options_of(ServeOptions).values() for flag in row.flags}
ELSEWHERE = {"--chat-template", "--quant"}
"""Of ``zse convert``."""


@pytest.mark.parametrize("option", sorted(others.OPTIONS))
def test_a_start_with_anothers_option_ends_with_what_does_the_same_here(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "tiny", option, "1"]) == 2
    assert capsys.readouterr().err.endswith(f"hint: {others.OPTIONS[option]}\n")
    assert option not in OURS
    assert set(FLAG.findall(others.OPTIONS[option])) <= OURS | ELSEWHERE


def test_the_commands_of_others_lead_to_ours() -> None:
    assert {command.partition(" ")[0] for command in others.COMMANDS.values()} <= set(COMMANDS)


def test_the_options_that_the_guide_translates_end_with_a_hint_and_ours_exist() -> None:
    table = re.search(r"\| there \| here \|\n.*?\n\n", GUIDE.read_text(), re.DOTALL)
    assert table is not None
    for row in table[0].strip().splitlines()[2:]:
        _, there, here, _ = row.split("|")
        assert set(FLAG.findall(here)) <= OURS | ELSEWHERE, row
        assert set(FLAG.findall(there)) <= set(others.OPTIONS) | OURS | {"--model"}, row
