"""What a pause prepares changes no number of the steps behind it, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mixed_steps import SHAPE, open_runner, steps
from random_files import write_random_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


def test_answers_behind_a_pause_are_those_without_one_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "model.zse"
    write_random_file(path, "int4", **SHAPE)
    answers, counts = [], []
    for has_pause in (False, True):
        runner = open_runner(path)
        runner.settle()
        # The first steps are the same ones: a long prompt is read, and answers begin.
        found, prepared = [runner.execute(batch) for batch in steps()], 0
        while has_pause and runner.prepare_idle():
            prepared += 1
        found += [runner.execute(batch) for batch in steps()]
        assert not runner._backend._prepares_no_more
        answers.append(found)
        counts.append(prepared)
        runner.close()
    assert counts[0] == 0 < counts[1]
    assert answers[0] == answers[1]
