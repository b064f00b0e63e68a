"""Passes of a GPU that guess: over the blocks of sequences, and waited for one by one; and states.

Such passes stand in the stream between steps, their graphs beside those of steps. Tokens go to the
host by a way of their own, since a step that was sent before may not have been read yet. A guess
takes its sequence's place on the device, where the next step that looks there follows a step that
chose a token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from zse.backends.gpu.given_states import left_by, sampled_by, send_given
from zse.backends.gpu.starting import StartingBackend
from zse.backends.gpu.step import plan_step
from zse.backends.gpu.transfers import NOTHING, ResultRing, StagingRing, Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.forward import Step
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
    _given_ring: StagingRing | None = None
    leaves_states: bool
    """Whether steps leave the states of their tokens."""
    _send_adapters: Callable[[StepPlan], None]

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute single rows by another pass than the model's own."""
        self._gpu.make_current()
        plan = plan_step(batch, self._limits)
        self._send_adapters(plan)
        work = partial(forward, cast("Backend", self))
        comes_with_states = batch.chunks[0].joined is not None
        if self._graphs.can_repeat(plan) and not comes_with_states:
            self._graphs.repeat(plan, work, self.choose, forward)
        else:
            step = self._maker.begin(plan, self._memory.sequences)
            if comes_with_states:
                self._send_states(plan, step.scratch.residual)
            work(replace(step, launcher=self._launcher))  # patterns are those of the model's pass
        ring = self._guess_ring = self._guess_ring or ResultRing(self._gpu, self._sampled, count=1)
        return ring.receive(plan, self._stream).wait()

    def _give(self, plan: StepPlan, step: Step) -> None:
        """Send the states that tokens come with, where they come with any."""
        if self._model.plans.takes_states:
            self._send_states(plan, step.scratch.given)

    def _send_states(self, plan: StepPlan, address: int) -> None:
        ring = self._given_ring = self._given_ring or StagingRing(self._gpu)
        send_given(plan, address, self._hidden, ring, self._stream)

    def _told(self, plan: StepPlan, left: int, step: Step | None = None) -> Told:
        """Return what a step tells besides its tokens; a captured one only what it leaves."""
        if not (self.leaves_states or plan.wants_hidden):
            return NOTHING
        hidden = self._hidden
        sampled = sampled_by(plan, step, hidden) if step is not None else None
        return Told(sampled=sampled, left=left_by(plan, left, hidden))
