"""Layers launched by pattern make the same numbers as the program, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mixed_steps import SHAPE, open_runner, steps
from random_files import BIASES, write_random_file
from taken_places import takes_over

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


def test_a_model_in_the_place_of_another_answers_as_it_does_alone_to_the_bit(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "model.zse", tmp_path / "other.zse"
    write_random_file(path, "int4", vectors="fp32", **SHAPE)
    write_random_file(other, "int4", tuned="layers.5.", vectors="fp32", **SHAPE)
    alone = open_runner(other)
    alone.settle()
    expected = [alone.execute(batch) for batch in steps()]
    alone.close()
    first = open_runner(path)
    first.settle()
    assert [first.execute(batch) for batch in steps()] != expected
    second, _ = takes_over(first, other)
    assert [second.execute(batch) for batch in steps()] == expected
    second.settle()
    second.close()
