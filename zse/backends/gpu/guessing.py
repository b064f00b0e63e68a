"""Passes of a GPU that guess: over the blocks of sequences, and waited for one by one.

They stand in the stream between steps, and their graphs beside those of steps. Tokens go to the
host by a way of their own, since a step that was sent before may not have been read yet. A guess
takes its sequence's place on the device, where the next step that looks there follows a step that
chose a token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from zse.backends.gpu.starting import StartingBackend
from zse.backends.gpu.step import plan_step
from zse.backends.gpu.transfers import ResultRing

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.memory import DeviceMemory
    from zse.backends.gpu.step import StepLimits, StepPlan
    from zse.backends.gpu.transfers import SampledMemory
    from zse.backends.operations import Backend, Forward
    from zse.backends.types import Answers, StepBatch
    from zse.kernels.launcher import Launcher


class GuessingBackend(StartingBackend):
    """See ``zse.backends.abilities.Guesser``, which this is of a GPU backend."""

    _launcher: Launcher
    _memory: DeviceMemory
    _limits: StepLimits
    _sampled: SampledMemory
    _guess_ring: ResultRing | None = None
    _send_adapters: Callable[[StepPlan], None]

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute single rows by another pass than the model's own."""
        self._gpu.make_current()
        plan = plan_step(batch, self._limits)
        self._send_adapters(plan)
        work = partial(forward, cast("Backend", self))
        if self._graphs.can_repeat(plan):
            self._graphs.repeat(plan, work, self.choose, forward)
        else:
            step = self._maker.begin(plan, self._memory.sequences)
            work(replace(step, launcher=self._launcher))  # patterns are those of the model's pass
        ring = self._guess_ring = self._guess_ring or ResultRing(self._gpu, self._sampled, count=1)
        return ring.receive(plan, self._stream).wait()
