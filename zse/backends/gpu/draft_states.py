"""Where the states of a step's rows lie, of a model whose drafts leave one each.

The state of a sequence lies in a slot of its own until drafts are checked. Each of these leaves the
state behind it in a slot that is lent for the step, and the sequence goes on with that of the last
draft that stood: which one, the host finds out with the step's tokens.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.states import StateSlots
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from zse.backends.gpu.step import StepPlan
    from zse.backends.operations import PendingStep
    from zse.backends.states import StateLayout
    from zse.backends.types import Answers


@record
class StateRows:
    """Slots of the states of a step."""

    single: Sequence[int]
    """Where each single row leaves its sequence's state; the first one of a chunk, where it is."""
    runs: Sequence[int]
    """Of each single row, how many of its chunk begin with it: 0 behind the first one."""
    prefill: Sequence[int]
    """Of each other chunk."""


class DraftStates:
    """Lends slots to the drafts of steps, and takes back those of drafts that were wrong.

    Args:
        layout: The states that there is memory for.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._slots = StateSlots(layout)
        self._check: CheckedStep | None = None
        """The newest step that has lent any."""

    def of(self, slot: int) -> int:
        """Return where the state of a sequence, or a checkpoint, lies."""
        return self._slots.of(slot)

    def settle_for(self, plan: StepPlan) -> None:
        """Wait for an earlier step's drafts, where this step lends slots too, or needs theirs."""
        check = self._check
        if check is None or check.is_settled:
            return
        of_step = {chunk.sequence_slot for chunk in plan.batch.chunks}
        if plan.single_rows > len(plan.single) or of_step & check.lent:
            check.wait()

    def rows_of(self, plan: StepPlan) -> tuple[StateRows, dict[int, list[int]]]:
        """Return the slots of a step's rows, and those that are lent, by number of the chunk."""
        chunks = plan.batch.chunks
        single: list[int] = []
        runs: list[int] = []
        lent: dict[int, list[int]] = {}
        for index in plan.single:
            chunk = chunks[index]
            count = len(chunk.token_ids)
            slots = self._slots.lend(chunk.sequence_slot, count - 1)
            if count > 1:
                lent[index] = slots
            single += slots
            runs += [count, *[0] * (count - 1)]
        prefill = [self.of(chunks[index].sequence_slot) for index in plan.prefill]
        return StateRows(single=single, runs=runs, prefill=prefill), lent

    def take_back(self, plan: StepPlan, lent: dict[int, list[int]]) -> None:
        """Have the slots of a step's drafts back, which was not computed."""
        self._settle(plan, lent, [()] * len(plan.batch.chunks))

    def settling(
        self, step: PendingStep, plan: StepPlan, lent: dict[int, list[int]]
    ) -> PendingStep:
        """Return a step whose sequences go on with the right states once it was waited for."""
        if not lent:
            return step
        of_step = {plan.batch.chunks[index].sequence_slot for index in lent}
        settle = partial(self._settle, plan, lent)
        self._check = CheckedStep(step=step, lent=of_step, settle=settle)
        return self._check

    def _settle(self, plan: StepPlan, lent: dict[int, list[int]], answers: Answers) -> None:
        for index, slots in lent.items():
            num_stood = max(0, len(answers[index]) - 1)
            self._slots.settle(plan.batch.chunks[index].sequence_slot, slots, num_stood)


@dataclass
class CheckedStep:
    """A step that has checked drafts. See ``zse.backends.operations.PendingStep``."""

    step: PendingStep
    lent: Set[int]
    """Sequences whose drafts have slots, by slot."""
    settle: Callable[[Answers], None]
    """Called once, with what came of the drafts."""
    _answers: Answers | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_settled(self) -> bool:
        return self._answers is not None

    def sample(self) -> None:
        self.step.sample()

    def wait(self) -> Answers:
        """Wait for the tokens; another thread may have done so, for a step behind this one."""
        with self._lock:
            if self._answers is None:
                answers = self.step.wait()
                self.settle(answers)
                self._answers = answers
            return self._answers
