"""Answers become verdicts and verdicts figures."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.evaluate.code.chances import Difference, Estimate, difference, mean_of, pass_at
from zse.evaluate.code.form import program_of
from zse.evaluate.sandbox.run import run_program, strongest_mode
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zse.evaluate.code.answers import Answer
    from zse.evaluate.code.form import Form
    from zse.evaluate.code.problems import Problem
    from zse.evaluate.sandbox.run import Verdict

_COUNTED = (1, 10, 100)
"""The k of pass@k, where there are as many answers."""


@record
class Graded:
    """A model's answers, run."""

    passed: dict[str, int]
    """How many answers to each problem passed, in the order of the problems."""
    samples: int
    outcomes: dict[str, int]
    mode: str
    """How the programs were held."""

    @property
    def shares(self) -> list[float]:
        """pass@1 of each problem."""
        return self._chances(1)

    def pass_at_k(self) -> dict[int, Estimate]:
        """Return pass@k for each k that there are answers for."""
        return {k: mean_of(self._chances(k)) for k in _COUNTED if k <= self.samples}

    def beside(self, other: Graded) -> Difference:
        """Return how much more is solved than by another model, answer for answer."""
        return difference(self.shares, other.shares)

    def gained(self, other: Graded) -> list[str]:
        """Return the problems of which more is solved than by another model."""
        pairs = zip(self.passed, self.shares, other.shares, strict=True)
        return [name for name, this, that in pairs if this > that]

    def _chances(self, k: int) -> list[float]:
        return [pass_at(k, self.samples, count) for count in self.passed.values()]


def grade(
    problems: Sequence[Problem],
    answers: Mapping[tuple[str, int], Answer],
    form: Form,
    *,
    samples: int,
    progress: Callable[[int, int], None] | None = None,
) -> Graded:
    """Run every answer's program, as many at once as there are cores.

    Args:
        problems: What was asked.
        answers: By problem and sample; all are there.
        form: How it was asked.
        samples: Answers to each problem.
        progress: Called with the programs that were run and all there are.

    Raises:
        SandboxError: Programs cannot be held here.
    """
    mode = strongest_mode()
    asked = [(problem, sample) for problem in problems for sample in range(samples)]
    programs = (
        program_of(problem, answers[problem.task_id, sample].text, form)
        for problem, sample in asked
    )
    verdicts = _run_all(programs, len(asked), progress)
    passed = {problem.task_id: 0 for problem in problems}
    for (problem, _), verdict in zip(asked, verdicts, strict=True):
        passed[problem.task_id] += verdict.outcome == "passed"
    outcomes: Counter[str] = Counter(verdict.outcome for verdict in verdicts)
    return Graded(passed=passed, samples=samples, outcomes=dict(outcomes), mode=mode)


def _run_all(
    programs: Iterable[str], total: int, progress: Callable[[int, int], None] | None
) -> list[Verdict]:
    verdicts = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for verdict in workers.map(run_program, programs):
            verdicts.append(verdict)
            if progress:
                progress(len(verdicts), total)
    return verdicts
