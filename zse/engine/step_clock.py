"""When the engine's steps began and ended, told to the requests that ask. Others cost no time.

    submitted --> (the step before it ends) --> began ...... computed --> ended

Of two steps in flight the later one begins, as far as anybody can see, when the earlier one ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.chunks import ScheduledChunk

MAX_STEPS = 512
"""Steps that are remembered of a request."""


class TimedStep(NamedTuple):
    """What one step did for a request."""

    began: float
    """On ``time.perf_counter``, as ``ended``."""
    ended: float
    reads_prompt: bool
    """Whether it read a piece of the prompt; else it went on with answers."""
    num_tokens: int
    """Computed for all choices of the request together."""


class StepLog:
    """The first steps that a request took part in, and how many there were.

    The engine's thread writes; others read what is there.
    """

    def __init__(self) -> None:
        self.steps: list[TimedStep] = []
        self.num_steps = 0

    def add(self, step: TimedStep) -> None:
        self.num_steps += 1
        if len(self.steps) < MAX_STEPS:
            self.steps.append(step)


class StepClock:
    """Times steps from when it was made."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._submitted: dict[int, float] = {}
        """When the steps in flight were handed over, by the identity of their chunks."""
        self._last_ended = now()

    def submitted(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Note that a step was handed to the runner."""
        self._submitted[id(chunks)] = self._now()

    def done(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Note that a step has ended, and tell each request that was in it and asks."""
        ended = self._now()
        began = max(self._submitted.pop(id(chunks), self._last_ended), self._last_ended)
        self._last_ended = ended
        taking_part: dict[StepLog, list[ScheduledChunk]] = defaultdict(list)
        for chunk in chunks:
            if (log := chunk.sequence.request.steps) is not None:
                taking_part[log].append(chunk)
        for log, own in taking_part.items():
            reads = any(chunk.start < len(chunk.sequence.prompt_token_ids) for chunk in own)
            num_tokens = sum(chunk.num_tokens for chunk in own)
            log.add(TimedStep(began, ended, reads_prompt=reads, num_tokens=num_tokens))
