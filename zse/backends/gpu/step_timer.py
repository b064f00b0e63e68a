"""When a GPU worked at a step, by marks in its stream.

A mark stands before the inputs of a step and one behind its tokens. The first one is reached when
the step before has ended, or when the host has handed this one over, whatever comes later; so what
lies between two steps is time that the GPU had nothing to do. Launches of a step that the host has
not made yet are in the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.operations import PendingStep
    from zse.backends.types import Answers
    from zse.device.gpu import Event, Gpu, Stream

_RING = 8
"""Steps whose marks are kept: more than are in flight."""


class StepTimer:
    """Puts marks around the steps of one stream."""

    def __init__(self, gpu: Gpu, stream: Stream) -> None:
        self._stream = stream
        self._begins = [gpu.create_event(timing=True) for _ in range(_RING)]
        self._ends = [gpu.create_event(timing=True) for _ in range(_RING)]
        self._count = 0

    def time(self, submit: Callable[[], PendingStep]) -> TimedStep:
        """Submit a step between two marks."""
        index = self._count % _RING
        begin, end = self._begins[index], self._ends[index]
        begin.record(self._stream)
        step = submit()
        end.record(self._stream)
        before = self._ends[index - 1] if self._count else None
        self._count += 1
        return TimedStep(step, before, begin, end)


class TimedStep:
    """See ``zse.backends.operations.PendingStep`` and ``zse.engine.step_trace.TimedByDevice``.

    Of a step with masks the choice of its tokens is not in its time.
    """

    def __init__(self, step: PendingStep, before: Event | None, begin: Event, end: Event) -> None:
        self._step = step
        self._before, self._begin, self._end = before, begin, end
        self.idle_seconds = self.busy_seconds = 0.0

    def sample(self) -> None:
        self._step.sample()

    def wait(self) -> Answers:
        answers = self._step.wait()
        self._end.synchronize()
        self.busy_seconds = self._end.elapsed_ms(self._begin) / 1e3
        if self._before is not None:
            self.idle_seconds = self._begin.elapsed_ms(self._before) / 1e3
        return answers
