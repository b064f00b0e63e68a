"""Several steps in flight, of sequences that are in no other: what a pipeline of machines needs.

    step 1: sequences a b | step 2: c d | step 3: e f | wait 1, deliver | step 4: a b ...

A device that looks ahead computes one sequence in steps that follow each other before the tokens
between them are known. Here each stage has another step at hand instead, and a sequence waits for
its own token alone. A prompt goes on in the next step at once: its tokens are known.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from zse.engine.pipeline import StepPipeline
from zse.engine.scheduler import MOST_BESIDE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.operations import PendingStep
    from zse.backends.types import SampledToken
    from zse.engine.chunks import ScheduledChunk
    from zse.engine.scheduler import Scheduler
    from zse.models.runner import ModelRunner


class StepRing(StepPipeline):
    """See ``StepPipeline``; steps are answered in the order in which they were submitted.

    Args:
        scheduler: Plans.
        runner: Has ``steps_in_flight``, which may change.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        super().__init__(scheduler, runner)
        self._most_tokens: int = getattr(runner, "tokens_beside", MOST_BESIDE)
        self._flying: deque[tuple[list[ScheduledChunk], PendingStep]] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._flying)

    def next(self) -> list[tuple[ScheduledChunk, Sequence[SampledToken]]]:
        wanted: int = self._runner.steps_in_flight
        while len(self._flying) < wanted:
            num_flying = len(self._flying)
            step = self._submit(
                partial(self._scheduler.schedule_beside, wanted, num_flying, self._most_tokens)
            )
            if step is None:
                break
            step[1].sample()  # nothing of these sequences is in flight: their masks are known
            self._flying.append(step)
        if not self._flying:
            return []
        return self._finish(*self._flying.popleft())

    def finish(self) -> list[tuple[ScheduledChunk, Sequence[SampledToken]]]:
        return [pair for flying in self._drain() for pair in self._finish(*flying)]

    def _drain(self) -> Iterator[tuple[list[ScheduledChunk], PendingStep]]:
        while self._flying:
            yield self._flying.popleft()

    def sample(self) -> None:
        """Steps chose their tokens when they came to the last stage."""

    def abandon(self) -> None:
        while self._flying:
            self._current = self._flying.popleft()
            super().abandon()


def pipeline_of(scheduler: Scheduler, runner: ModelRunner) -> StepPipeline:
    """Return what hands a runner its steps: a ring where it has several in flight."""
    kind = StepRing if runner.steps_in_flight > 1 else StepPipeline
    return kind(scheduler, runner)
