"""Answers outlive a run that is stopped, and are never taken for those to something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.evaluate.code.answers import Answer, AnswersFile, read_answers

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"model": "abc", "samples": 1}
ANSWER = Answer(task_id="t/0", sample=0, text="    return 1\n", num_tokens=4, was_ended=True)


def test_answers_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswersFile(path, ABOUT).add(ANSWER)
    assert AnswersFile(path, ABOUT).found == {("t/0", 0): ANSWER}
    assert read_answers(path) == (ABOUT, [ANSWER])


def test_half_a_line_of_a_killed_run_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswersFile(path, ABOUT).add(ANSWER)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-30:-5])
    again = AnswersFile(path, ABOUT)
    assert list(again.found.values()) == [ANSWER]
    assert path.read_bytes() == whole


def test_answers_of_another_model_are_kept_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswersFile(path, ABOUT).add(ANSWER)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="answers where model is 'abc', not 'other'"):
        AnswersFile(path, ABOUT | {"model": "other"})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "raw",
    [
        b"[1]\n",
        b"no json\n",
        b'{"a": 1}\n{"task_id": 3}\n',
        b'{"a": 1}\n[]\n',
        b"\xff\n",
        b"{}\n7\n",
    ],
)
def test_what_holds_no_answers_is_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"answers\.jsonl"):
        AnswersFile(path, ABOUT)
