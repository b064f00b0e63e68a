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
    # The first steps of both are the same: long prompts are read by patterns, and answers begin.
    before, behind = [*steps(), *single_steps()[:2]], [*steps(), *single_steps()]
    answers, counts = [], []
    for num_pauses in (0, 1, len(behind)):
        runner = open_runner(path)
        runner.settle()
        found, prepared = [runner.execute(batch) for batch in before], 0
        for number, batch in enumerate(behind):
            # One long pause, or a little of it before each step.
            while number < num_pauses and runner.prepare_idle():
                prepared += 1
                if num_pauses > 1 and prepared % 3 == 0:
                    break
            found.append(runner.execute(batch))
        assert not runner._backend._prepares_no_more
        answers.append(found)
        counts.append(prepared)
        runner.close()
    assert counts[0] == 0
    assert min(counts[1:]) > 10
    assert answers[0] == answers[1] == answers[2]
