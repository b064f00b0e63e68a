"""How many tokens of prompts a step takes beside answers, by what steps were seen to take.

Who waits for his next token waits for the whole step, so a piece of a prompt beside answers is cut.
How long it is depends on who waits. Where a crowd of prompts comes it is long while these are two
for each answer, for few are held up; then it is little longer than else, so that most steps have a
piece and answers go on at one pace, instead of standing still now and then. Where the device reads
more within a time that nobody sees, it may be longer. What a step without prompts takes, and what a
token of a prompt adds to it, are measured. Where nobody waits for a next token, steps are as large
as the budget of tokens says: prompts are read fastest then.

The lengths were tried on the scheduler alone (``scripts/bench/simulated_rows.py``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.chunks import ScheduledChunk

STRETCH = 2.2
"""Times what a step without prompts takes that one with a piece of a prompt may take."""
LEAST_SECONDS = 0.016
"""What it may take in any case: nobody sees it, and smaller pieces would make prompts slow."""
PROMPTS_EACH = 2
"""Prompts that wait for each answer where few are held up by what many gain."""
LONGEST_SECONDS = 0.06
"""What a step may take there: a glance."""
CROWD_STEPS = 4
"""Steps as a device computes them well that prompts must be worth to count as a crowd."""
CROWD_SHARE = 5 / 8
"""Of what a device computes well, beside many answers."""
ROUNDED_TO = 64
"""A piece is a multiple of this, as tiles of queries are."""
_FEWEST_TOKENS = 256
"""Of prompts in a step that tells what a token takes: fewer take what a step takes in any case."""
_NEWEST_WEIGHS = 0.25
_MOST_GROWTH = 1.5
"""Times what was believed that a step counts as at most: who was interrupted tells nothing."""


class PromptBudget:
    """Measures steps, and says how many tokens of prompts the next one may take.

    Args:
        most_tokens: Of any step.
        well_at_once: Rows that the device computes well at once: more are hardly quicker.
        now: Seconds of a clock.
    """

    def __init__(
        self,
        most_tokens: int,
        well_at_once: int,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most_tokens = most_tokens
        self._well_at_once = min(well_at_once, most_tokens)
        self.now = now
        self._submitted: dict[int, float] = {}
        """When the steps in flight were handed over, by the identity of their chunks."""
        self._last_ended = now()
        self._last_was_over = False
        """Whether it had ended before that, nobody knows when."""
        self._plain: dict[int, float] = {}
        """Seconds of steps without prompts, by the power of two that holds their rows."""
        self._token_seconds = 0.0
        """What a token of a prompt adds to a step; 0 until it was seen."""

    @property
    def last_ended(self) -> float:
        """When the newest step was seen to have ended."""
        return self._last_ended

    def submitted(self, chunks: Sequence[ScheduledChunk], began: float) -> None:
        """Note that a step was handed to the runner, and when that began."""
        self._submitted[id(chunks)] = began

    def done(self, chunks: Sequence[ScheduledChunk], *, was_over: bool = False) -> None:
        """Note that the oldest step has ended; of two in flight it began when that before ended.

        Args:
            was_over: Whether it had ended before anybody looked: it took less than it seems.
        """
        ended = self.now()
        submitted = self._submitted.pop(id(chunks), self._last_ended)
        began = max(submitted, self._last_ended)
        is_begin_known = not self._last_was_over or submitted >= self._last_ended
        self._last_ended, self._last_was_over = ended, was_over
        if not is_begin_known:
            return
        num_tokens = sum([chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"])
        num_rows = sum([chunk.num_tokens for chunk in chunks if chunk.kind != "prefill"])
        self.note(num_rows, num_tokens, ended - began, is_bound=was_over)

    def note(
        self, num_rows: int, num_tokens: int, seconds: float, *, is_bound: bool = False
    ) -> None:
        """Note what a step took.

        Args:
            num_rows: Of answers: tokens that are decoded, drafts.
            num_tokens: Of prompts.
            seconds: That it took.
            is_bound: Whether it took so long at most.
        """
        bucket = (num_rows - 1).bit_length()
        if is_bound:  # which tells little, and nothing of what was never seen to its end
            if not num_tokens and bucket in self._plain:
                self._plain[bucket] = min(self._plain[bucket], seconds)
        elif not num_tokens:
            self._plain[bucket] = _mixed(self._plain.get(bucket, 0.0), seconds)
        elif num_tokens >= min(_FEWEST_TOKENS, self._well_at_once):
            added = seconds - (self._plain_seconds(num_rows) if num_rows else 0.0)
            self._token_seconds = _mixed(self._token_seconds, max(added, 0.0) / num_tokens)

    def expected_end(self, chunks: Sequence[ScheduledChunk]) -> float:
        """Return when the oldest step in flight should end; 0 where nothing is known of its like.

        It is rather too early than too late: few tokens take longer each than many.
        """
        if not self._token_seconds:
            return 0.0
        num_tokens = sum([chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"])
        num_rows = sum([chunk.num_tokens for chunk in chunks if chunk.kind != "prefill"])
        began = max(self._submitted.get(id(chunks), self._last_ended), self._last_ended)
        plain = self._plain_seconds(num_rows) if num_rows else 0.0
        return began + plain + num_tokens * self._token_seconds

    def tokens_beside(self, num_rows: int, num_prompts: int, prompt_tokens: int) -> int:
        """Return how many tokens of prompts may be computed beside rows of answers.

        Args:
            num_rows: Of answers.
            num_prompts: Who wait for their first token.
            prompt_tokens: That are to be computed for these.
        """
        if not num_rows:
            return self._most_tokens
        # Together with the rows beside it a piece fills tiles: one row more is a whole tile more.
        rows = self._rows_of_step(num_rows, num_prompts, prompt_tokens)
        piece = max(rows - num_rows, self._well_at_once // 4)
        if self._token_seconds:
            plain = self._plain_seconds(num_rows)
            allowed = max(plain * STRETCH, LEAST_SECONDS) - plain
            piece = max(piece, self._tokens_within(allowed))
        return min(self._most_tokens, max(piece, 1))

    def _rows_of_step(self, num_rows: int, num_prompts: int, prompt_tokens: int) -> int:
        """Return how many rows a step may have for who waits."""
        well = self._well_at_once
        if prompt_tokens < CROWD_STEPS * well:
            return well if num_prompts >= num_rows else well // 2
        if num_prompts < PROMPTS_EACH * num_rows:
            return int(well * CROWD_SHARE)
        if not self._token_seconds:
            return well
        glance = self._tokens_within(LONGEST_SECONDS - self._plain_seconds(num_rows))
        return min(max(glance + num_rows, well), 2 * well)

    def _tokens_within(self, seconds: float) -> int:
        return int(seconds / self._token_seconds) // ROUNDED_TO * ROUNDED_TO

    def _plain_seconds(self, num_rows: int) -> float:
        """Return what so many rows take alone: as measured, or what the nearest number did."""
        bucket = (num_rows - 1).bit_length()
        nearest = min(self._plain, key=lambda known: abs(known - bucket), default=None)
        return 0.0 if nearest is None else self._plain[nearest]


def _mixed(old: float, newest: float) -> float:
    """Return what is believed after one more measurement."""
    if not old:
        return newest
    return old + _NEWEST_WEIGHS * (min(newest, old * _MOST_GROWTH) - old)
