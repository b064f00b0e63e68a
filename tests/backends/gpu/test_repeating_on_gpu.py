"""Layers launched by pattern make the same numbers as the program, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mixed_steps import ROW, SHAPE, chunk_of, open_runner, steps
from random_files import BIASES, write_random_file
from taken_places import hold_weights, takes_over

from zse.backends.gpu.patterns import Patterns
from zse.backends.types import StepBatch

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
        assert (maker.patterns.num_used > 5) == (patterns is None)
        runner.close()
    assert answers[0] == answers[1]


def test_layers_by_patterns_beside_weights_that_arrive_leave_the_bits_of_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "model.zse", tmp_path / "other.zse"
    write_random_file(path, "int4", vectors="fp32", **SHAPE)
    write_random_file(other, "int4", tuned="layers.5.", vectors="fp32", **SHAPE)
    prompts = [prompt_of(length) for length in range(300, 900, 60)]
    first = open_runner(path)
    first.settle()
    others = [first.execute(batch) for batch in (*prompts, *steps())]
    patterns = first._backend._maker.patterns
    known = next(batch for batch in prompts if executed(first, batch)[1])
    batches = [known, *prompts, *steps()]
    alone = open_runner(other)
    alone.settle()
    expected = [alone.execute(batch) for batch in batches]
    alone.close()
    assert others != expected[1:]
    may_read = hold_weights(monkeypatch, other)
    second, _ = takes_over(first, other)
    passes = second._backend._passes
    wait = passes._arrival.wait_for_group
    monkeypatch.setattr(
        passes._arrival, "wait_for_group", lambda group: (may_read.set(), wait(group))
    )
    assert passes.is_arriving
    assert second._backend._maker.patterns is patterns
    answers, used = executed(second, known)
    assert used == 1
    assert not passes.is_arriving
    assert [answers, *(second.execute(batch) for batch in batches[1:])] == expected
    second.close()


def executed(runner: Any, batch: StepBatch) -> tuple[object, int]:
    """Return the answers of a step, and how many patterns it used."""
    patterns = runner._backend._maker.patterns
    before = patterns.num_used
    return runner.execute(batch), patterns.num_used - before


def prompt_of(length: int) -> StepBatch:
    """Return a step of a prompt that is alone."""
    chunk = chunk_of(0, [7 * number % 320 for number in range(length)], 0)
    return StepBatch(chunks=[chunk], sampling=[[ROW]])
