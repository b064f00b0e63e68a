"""How long the plan of a step may wait for requests that are on their way.

A step is planned while the one before it runs, and who comes after that waits for two steps. Where
the one that runs reads prompts, it takes long, and a plan that was made at its begin would hold
nothing but the next tokens of answers. So it is made as late as the device allows: a crowd that
comes within milliseconds is read by the next step. Where prompts are here already it waits only
until the loop has had time to write what the step before made: who launches has the interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.chunks import ScheduledChunk
    from zse.engine.prompt_budget import PromptBudget

SAFETY = 1.5
"""Times what planning and handing over took lately that is left for it."""
SPARE_SECONDS = 0.001
"""More that is left: a thread is not woken on the spot."""
WRITING_SECONDS = 0.002
"""Behind a step's end, for its tokens to be written by a thread that waits for the interpreter."""
_NEWEST_WEIGHS = 0.25


class Patience:
    """Measures what the host takes for a step with prompts.

    Args:
        budget: Knows what steps take on the device.
    """

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._host_seconds = 0.0
        """Of planning and handing over, as of late."""

    def note(self, chunks: Sequence[ScheduledChunk], began: float) -> None:
        """Note that a step was handed over, and when its plan was begun."""
        if not reads_prompts(chunks):
            return
        seconds = self._budget.now() - began
        # What was slow once may be so again; what was quick proves less.
        if seconds > self._host_seconds:
            self._host_seconds = seconds
        else:
            self._host_seconds += _NEWEST_WEIGHS * (seconds - self._host_seconds)

    def seconds_for(self, running: Sequence[ScheduledChunk], *, has_prompts: bool) -> float:
        """Return how long the plan of the next step may wait; 0 or less for not at all.

        Args:
            running: The step that the device computes now.
            has_prompts: Whether prompts are here that the next step reads.
        """
        if not reads_prompts(running):
            return 0.0
        expected = self._budget.expected_end(running)
        now = self._budget.now()
        left = expected - now - SPARE_SECONDS - SAFETY * self._host_seconds
        if has_prompts:
            left = min(left, self._budget.last_ended + WRITING_SECONDS - now)
        return left


def reads_prompts(chunks: Sequence[ScheduledChunk]) -> bool:
    """Whether a step reads prompts, which stand behind answers."""
    return bool(chunks) and chunks[-1].kind == "prefill"
