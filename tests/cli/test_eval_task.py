"""`zse eval --task humaneval` has a model write programs, runs them, and says how many pass."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from zse.cli.eval import app
from zse.errors import NotFoundError, UsageError
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

PROBLEMS = [
    {"prompt": "def f():\n", "test": "def check(candidate):\n    pass"},
    {"prompt": "def f():\n    return 1\n", "test": "def check(candidate):\n    pass"},
    {"prompt": "def f():\n    return 1\n", "test": "def check(candidate):\n    assert 0"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.zse"
    convert_model("tiny", path, "int8")
    return path


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [{"task_id": f"t/{i}", "entry_point": "f", **row} for i, row in enumerate(PROBLEMS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shown(*words: str | Path) -> str:
    command = [*map(str, words), "--task", "humaneval", "--max-tokens", "8"]
    return CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_answers_are_written_run_and_kept(model: Path, problems: Path, tmp_path: Path) -> None:
    kept = tmp_path / "answers.jsonl"
    words = (model, "--problems", problems, "--answers", kept, "--json")
    found = json.loads(shown(*words))
    assert found["num_problems"] == sum(found["outcomes"].values()) == 3
    assert found["pass_at_1_low"] <= found["pass_at_1"] <= found["pass_at_1_high"]
    before = kept.read_bytes()
    assert len(before.splitlines()) == 4
    assert json.loads(shown(*words)) == found
    assert kept.read_bytes() == before


def test_a_stopped_run_writes_only_what_is_missing(
    model: Path, problems: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "answers.jsonl"
    shown(model, "--problems", problems, "--answers", kept)
    lines = kept.read_text().splitlines(keepends=True)
    marked = lines[1].replace('"text": "', '"text": "MARK ')
    kept.write_text(lines[0] + marked + lines[2][:20])
    shown(model, "--problems", problems, "--answers", kept)
    again = kept.read_text().splitlines(keepends=True)
    assert marked in again
    assert len(again) == 4


def test_another_run_is_held_against_problem_by_problem(
    model: Path, problems: Path, tmp_path: Path
) -> None:
    own, other = tmp_path / "own.jsonl", tmp_path / "answers.jsonl"
    shown(model, "--problems", problems, "--answers", own)
    first, *lines = [json.loads(line) for line in own.read_text().splitlines()]
    right, wrong = "def f():\n    return 1\n", "def f(:\n"
    for path, texts in ((own, [right, wrong, wrong]), (other, [wrong, right, right])):
        given = dict(zip(("t/0", "t/1", "t/2"), texts, strict=True))
        rows = [first, *({**line, "text": given[line["task_id"]]} for line in lines)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (model, "--problems", problems, "--answers", own, "--against", other)
    found = json.loads(shown(*words, "--json"))
    assert found["against_pass_at_1"] == pytest.approx(1 / 3)  # nothing passes the third
    assert found["difference"] == pytest.approx(found["pass_at_1"] - 1 / 3)
    assert (found["gained"], found["lost"]) == (["t/0"], ["t/1"])
    said = shown(*words)
    assert "points" in said
    assert "of answers.jsonl" in said
    assert re.search(r"gained +t/0\nlost +t/1\n", said)


def test_sampled_answers_give_pass_at_k(model: Path, problems: Path) -> None:
    words = (model, "--problems", problems, "--samples", "10", "--temperature", "1")
    found = json.loads(shown(*words, "--json"))
    assert sum(found["outcomes"].values()) == 30
    assert found["pass_at_1"] <= found["pass_at_10"]


def test_equal_answers_are_not_asked_for_twice(model: Path, problems: Path) -> None:
    with pytest.raises(UsageError, match="would be equal"):
        shown(model, "--problems", problems, "--samples", "2")


def test_without_problems_it_is_said_where_they_are(model: Path) -> None:
    with pytest.raises(NotFoundError, match="not here"):
        shown(model)
