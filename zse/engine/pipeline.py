"""Steps in flight: at most two, so that a device that looks ahead never waits for the host.

    host     plan 1, submit | plan 2, submit | wait 1, deliver | plan 3, submit | wait 2, deliver
    device                  | step 1 ...............| step 2 ................| step 3 ....

A step is planned before the tokens of the one before it are known. Sequences go on with a pending
token in their place; what a sequence computed past its end is thrown away.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch
from zse.engine.patience import Patience
from zse.engine.step_clock import StepClock
from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.operations import PendingStep
    from zse.backends.types import SampledToken, StepKind, TokenMasks
    from zse.engine.chunks import ScheduledChunk
    from zse.engine.scheduler import Scheduler
    from zse.engine.step_trace import StepTrace
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.models.runner import ModelRunner

logger = logging.getLogger(__name__)

_PENDING = (PENDING_TOKEN,)
_AT_ONCE_SECONDS = 0.0003
"""A step that is waited for no longer than this was done before: the device idled."""


class StepPipeline:
    """Has steps planned, hands them to the runner and takes their answers in the same order."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._looks_ahead = runner.looks_ahead
        self._current: tuple[list[ScheduledChunk], PendingStep] | None = None
        self._patience = Patience(scheduler.prompt_budget)
        self.readers_are_busy: Callable[[], bool] = lambda: False
        """Whether the tokens of the last step are still being written."""
        self._clock: StepClock | None = None
        self.trace: StepTrace | None = None
        """Records every step; None where nobody asked for that."""

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    def time_steps(self) -> None:
        """Note the times of steps in the logs of their requests from now on."""
        if self._clock is None:
            self._clock = StepClock()

    def next(self) -> list[tuple[ScheduledChunk, Sequence[SampledToken]]]:
        """Wait for the oldest step, with the one after it submitted.

        Returns:
            Its chunks, each with the tokens that follow it; empty when nothing can run.

        Raises:
            EngineError: The runner broke its contract.
        """
        is_first = self._current is None
        current = self._current or self._submit(self._scheduler.schedule_step)
        if current is None:
            return []
        current[1].sample()
        self._current = current
        if is_first and self.patience_seconds > 0:
            return []  # others may come in the meantime
        self._current = self._submit(self._scheduler.schedule_ahead) if self._looks_ahead else None
        return self._finish(*current)

    @property
    def patience_seconds(self) -> float:
        """How long ``next`` may wait to be called, for requests to be added first."""
        if self._current is None or not self._looks_ahead:
            return 0.0
        has_prompts, is_writing = self._scheduler.has_prompts, self.readers_are_busy()
        running = self._current[0]
        seconds = self._patience.seconds_for(
            running, has_prompts=has_prompts, is_writing=is_writing
        )
        return max(seconds, 0.0)

    def finish(self) -> list[tuple[ScheduledChunk, Sequence[SampledToken]]]:
        """Wait for the step in flight, after another could not be submitted; leave none."""
        current, self._current = self._current, None
        return [] if current is None else self._finish(*current)

    def sample(self) -> None:
        """Let the step that was planned ahead choose its tokens, now that those before are known.

        Called when the answer of the step before it has been taken.
        """
        if self._current is not None:
            self._current[1].sample()

    def abandon(self) -> None:
        """Wait for what is in flight and throw it away, so that the runner can be closed."""
        current, self._current = self._current, None
        if current is None:
            return
        try:
            current[1].wait()
        except Exception as error:  # noqa: BLE001 - the end comes either way
            logger.warning("the last step failed: %s", error)
        self._scheduler.done()

    def _finish(
        self, chunks: list[ScheduledChunk], step: PendingStep
    ) -> list[tuple[ScheduledChunk, Sequence[SampledToken]]]:
        """Wait for a step; return its chunks with their answers."""
        if self.trace is not None:
            self.trace.waiting()
        budget = self._scheduler.prompt_budget
        waiting_from = budget.now()
        answers = step.wait()
        was_over = self._looks_ahead and budget.now() - waiting_from < _AT_ONCE_SECONDS
        if self.trace is not None:
            self.trace.ended(chunks, step)
        budget.done(chunks, was_over=was_over)
        if self._clock is not None:
            self._clock.done(chunks)
        self._scheduler.done()
        if len(answers) != len(chunks):
            raise EngineError(f"the runner answered {len(answers)} chunks, expected {len(chunks)}")
        return list(zip(chunks, answers, strict=True))

    def _submit(
        self, plan: Callable[[], list[ScheduledChunk]]
    ) -> tuple[list[ScheduledChunk], PendingStep] | None:
        """Have a step planned and hand it to the runner; None where there is none."""
        if self.trace is not None:
            self.trace.planning()
        budget = self._scheduler.prompt_budget
        worked_before = self._patience.worked()
        chunks = plan()
        if not chunks:
            return None
        if self.trace is not None:
            self.trace.planned()
        batch = StepBatch(
            chunks=[_chunk_for_runner(chunk) for chunk in chunks],
            sampling=[_rows_of(chunk) for chunk in chunks],
            masks=_masks_of(chunks),
        )
        began = budget.now()  # a device that does not look ahead computes it here
        step = self._runner.submit(batch)
        budget.submitted(chunks, began)
        self._patience.note(chunks, self._patience.worked() - worked_before)
        if self._clock is not None:
            self._clock.submitted(chunks)
        if self.trace is not None:
            self.trace.submitted(chunks, len(self._scheduler.waiting))
        self._scheduler.submitted(chunks)
        return chunks, step


def _rows_of(chunk: ScheduledChunk) -> list[SamplingRow]:
    rows = chunk.sequence.sampling_rows(chunk.num_wanted)
    if chunk.num_read and (reading := chunk.sequence.reading) is not None:
        return reading.rows(chunk.num_read) + rows
    return rows


def _masks_of(chunks: list[ScheduledChunk]) -> TokenMasks | None:
    asked = [
        (chunk.sequence, chunk.sequence.drafts[: chunk.num_wanted - 1])
        for chunk in chunks
        if chunk.num_wanted and chunk.sequence.grammar is not None
    ]
    if not asked:
        return None
    from zse.engine.masks import StepMasks  # with what only answers in a form need

    return StepMasks(asked)


def _chunk_for_runner(chunk: ScheduledChunk) -> SequenceChunk:
    sequence, adapter = chunk.sequence, chunk.sequence.request.adapter
    assert sequence.table is not None
    end = chunk.start + chunk.num_tokens
    token_ids: Sequence[int] = sequence.token_ids[chunk.start : end]
    is_alone = sequence.request.params.deterministic
    kind: StepKind = "alone" if is_alone and chunk.kind == "prefill" else chunk.kind
    if chunk.kind == "verify":
        token_ids = (*token_ids, *sequence.drafts[: chunk.num_tokens - 1])
    states = sequence.states
    return SequenceChunk(
        sequence.slot,
        token_ids or _PENDING,
        chunk.start,
        sequence.table.blocks,
        kind,
        restored_from=sequence.table.restored_from,
        saved_to=chunk.saved_to,
        windows=sequence.table.windows,
        adapter=None if adapter is None else adapter.handle,
        states_to=None if states is None else states.room(chunk.start, chunk.num_tokens),
        is_alone=is_alone,
    )
