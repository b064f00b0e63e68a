"""Layers launched by pattern make the same numbers as the program, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mixed_steps import SHAPE, open_runner, steps
from random_files import BIASES, write_random_file

from zse.backends.gpu.patterns import Patterns

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("more", [{}, BIASES], ids=["usual", "biases"])
def test_answers_by_patterns_are_those_of_the_program_to_the_bit(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    path = tmp_path / "model.zse"
    write_random_file(path, "int4", **{**SHAPE, **more})
    answers = []
    for patterns in (None, Patterns(0)):
        runner = open_runner(path)
        maker = runner._backend._maker
        maker.patterns = patterns or maker.patterns
        answers.append([runner.execute(batch) for batch in steps()])
        used = sum(found.num_used for found in maker.patterns._found.values() if found)
        assert (used > 5) == (patterns is None)
        runner.close()
    assert answers[0] == answers[1]
