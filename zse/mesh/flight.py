"""Steps on their way through the stages: numbered, remembered until nobody can ask for them again.

A step that is answered twice, or by a node of an older epoch, is answered once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.mesh.batches import num_rows, read_tokens, write_batch
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.types import Answers, StepBatch
    from zse.mesh.frames import Frame

_LEAST_DEADLINE_SECONDS = 0.4
_FIRST_DEADLINE_SECONDS = 10.0
_TIMES = 4


class MeshStep:
    """See ``zse.backends.operations.PendingStep``."""

    def __init__(self, number: int, batch: bytes, rows: int, now: float) -> None:
        self.number = number
        self.batch = batch
        self.rows = rows
        self.submitted = now
        self._answers: Answers | None = None
        self._error: ZSEError | None = None
        self._is_done = threading.Event()

    def sample(self) -> None:
        """Masks were asked for when the step was submitted: nothing is left to do."""

    def wait(self) -> Answers:
        self._is_done.wait()
        if self._error is not None:
            raise self._error
        assert self._answers is not None
        return self._answers

    @property
    def is_done(self) -> bool:
        return self._is_done.is_set()

    def resolve(self, answers: Answers | None, error: ZSEError | None = None) -> None:
        self._answers, self._error = answers, error
        self._is_done.set()


@record
class Overdue:
    """A step that takes longer than any like it did."""

    number: int
    seconds: float
    is_first: bool
    """No other was like it: nobody knows yet how long it may take."""


class Flight:
    """All steps that may have to be sent again. Its callers hold one lock."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._steps: OrderedDict[int, MeshStep] = OrderedDict()
        self._slowest: dict[int, float] = {}
        """Seconds of a step, by the power of two of its rows."""
        self.submitted = self.answered = 0
        self._last_progress = 0.0

    def add(self, batch: StepBatch) -> MeshStep:
        self.submitted += 1
        now = time.monotonic()
        data, rows = write_batch(batch, self._vocab_size), num_rows(batch)
        step = self._steps[self.submitted] = MeshStep(self.submitted, data, rows, now)
        return step

    def take(self, frame: Frame) -> None:
        """Give a step its tokens; of an unknown or an answered one they are passed over."""
        step = self._steps.get(frame.step)
        if step is None or step.is_done:
            return
        now = time.monotonic()
        taken = now - max(step.submitted, self._last_progress)
        place = step.rows.bit_length()
        self._slowest[place] = max(taken, self._slowest.get(place, 0.0) * 0.98)
        self._last_progress = now
        try:
            step.resolve(read_tokens(frame.head))
        except ZSEError as error:
            step.resolve(None, error)
        while (following := self._steps.get(self.answered + 1)) and following.is_done:
            self.answered += 1

    def trim(self, upto: int) -> None:
        """Forget answered steps that the first stage's standby needs no more."""
        upto = min(upto, self.answered)
        while self._steps and next(iter(self._steps)) <= upto:
            self._steps.popitem(last=False)

    def to_resend(self) -> list[MeshStep]:
        return list(self._steps.values())

    def begun_anew(self) -> None:
        """Give steps that are sent again their time."""
        self._last_progress = time.monotonic()

    def overslept(self, seconds: float, now: float) -> None:
        """Note that this process did not run for a while: no tokens could be taken then."""
        step = self._steps.get(self.answered + 1)
        if step is not None:
            begun = max(step.submitted, self._last_progress)
            self._last_progress = min(now, begun + seconds)

    def overdue(self, now: float, resent: int = 0) -> Overdue | None:
        """Return the oldest step where it is late.

        Args:
            now: The time.
            resent: The step that was sent again for it: what a lost frame explained is mended by
                then, so it has half the time.
        """
        step = self._steps.get(self.answered + 1)
        if step is None:
            return None
        known = self._slowest.get(step.rows.bit_length())
        allowed = _FIRST_DEADLINE_SECONDS
        if known is not None:
            allowed = max(_LEAST_DEADLINE_SECONDS, known * _TIMES)
            allowed /= 2 if step.number == resent else 1
        waited = now - max(step.submitted, self._last_progress)
        if waited <= allowed:
            return None
        return Overdue(number=step.number, seconds=waited, is_first=known is None)

    def fail(self, error: ZSEError) -> None:
        """End all steps: nobody will answer them."""
        for step in self._steps.values():
            if not step.is_done:
                step.resolve(None, error)
        self._steps.clear()
        self.answered = self.submitted
