"""What a pause prepares changes no number of the steps behind it, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mixed_steps import ROW, SHAPE, chunk_of, open_runner, steps
from random_files import write_random_file

from zse.backends.types import StepBatch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


def single_steps() -> list[StepBatch]:
    """Answers of one, of three and of nine sequences, token by token."""
    return [
        StepBatch(
            chunks=[chunk_of(slot, [7 + slot], 20 + step) for slot in range(count)],
            sampling=[[ROW]] * count,
        )
        for step, count in enumerate((1, 1, 3, 3, 9, 9))
    ]


def test_answers_behind_a_pause_are_those_without_one_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "model.zse"
    write_random_file(path, "int4", **SHAPE)
    answers, counts = [], []
    for has_pause in (False, True):
        runner = open_runner(path)
        found, prepared = [runner.execute(batch) for batch in [*steps(), *single_steps()[:2]]], 0
        while has_pause and runner.prepare_idle():
            prepared += 1
        found += [runner.execute(batch) for batch in single_steps()]
        assert not runner._backend._prepares_no_more
        answers.append(found)
        counts.append(prepared)
        runner.close()
    assert counts[0] == 0 < counts[1]
    assert answers[0] == answers[1]
