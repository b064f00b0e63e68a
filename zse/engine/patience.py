"""How long planning the next step is put off, for requests that are about to come.

A step is planned while the one before it runs, and a request that comes after the plan waits for
two steps. A step that reads prompts takes long: planned at its start, the next one would hold
decodes alone. So it is planned as late as the device allows, and a crowd of requests that comes
within milliseconds is read by the very next step. Where prompts wait already, planning is put off
only until the event loop has written the tokens of the last step: both need the interpreter's lock,
and two threads that want it at once hold each other up for 5 ms a turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.chunks import ScheduledChunk
    from zse.engine.prompt_budget import PromptBudget

SAFETY = 1.5
"""Planning and submitting are given this many times what they took lately."""
SPARE_SECONDS = 0.001
"""Added to that, since a thread does not wake at once."""
WRITING_SECONDS = 0.002
"""After a step's end, for the event loop's thread to get the interpreter, in any case."""
_NEWEST_WEIGHS = 0.25


class Patience:
    """Measures what the host takes to plan and submit a step with prompts.

    Args:
        budget: Knows what steps take on the device.
        worked: Seconds that the calling thread has worked. What it waited for the interpreter is
            not in them: it would make the next plan earlier, beside more that others do.
    """

    def __init__(
        self, budget: PromptBudget, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._budget = budget
        self.worked = worked
        self._host_seconds = 0.0
        """Of planning and submitting, lately."""

    def note(self, chunks: Sequence[ScheduledChunk], seconds: float) -> None:
        """Note that a step was handed over, and how long planning and submitting it was work."""
        if not reads_prompts(chunks):
            return
        # What was slow once may be so again; what was quick proves less.
        if seconds > self._host_seconds:
            self._host_seconds = seconds
        else:
            self._host_seconds += _NEWEST_WEIGHS * (seconds - self._host_seconds)

    def seconds_for(
        self, running: Sequence[ScheduledChunk], *, has_prompts: bool, is_writing: bool = False
    ) -> float:
        """Return how long the plan of the next step may wait; 0 or less for not at all.

        Args:
            running: The step that the device computes now.
            has_prompts: Whether prompts are here that the next step reads.
            is_writing: Whether the tokens of the last step are still being written.
        """
        if not reads_prompts(running):
            return 0.0
        expected = self._budget.expected_end(running)
        now = self._budget.now()
        left = expected - now - SPARE_SECONDS - SAFETY * self._host_seconds
        if has_prompts and not is_writing:
            left = min(left, self._budget.last_ended + WRITING_SECONDS - now)
        return left


def reads_prompts(chunks: Sequence[ScheduledChunk]) -> bool:
    """Whether a step computes any prompt: their chunks come after the decodes."""
    return bool(chunks) and chunks[-1].kind == "prefill"
