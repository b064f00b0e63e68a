"""The settings files among the examples: what zse reads in them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from zse.cli import run

FOLDER = Path(__file__).parents[2] / "examples/settings"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_key_is_a_setting_and_takes_effect(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZSE_CONFIG", str(file))
    assert run(["config", "show", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    shown = {key: one["value"] for key, one in report.items() if one["origin"] == str(file)}
    assert shown == tomllib.loads(file.read_text())


def test_the_table_names_every_file() -> None:
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"\]\(([\w-]+\.toml)\)", text) == [file.name for file in FILES]
