"""How many tokens of prompts a step takes beside answers, by what steps were seen to take.

Who waits for his next token waits for the whole step, so a piece of a prompt beside answers is cut.
It is long where many wait for a first token, and half as long where few do: answers then go on at
nearly one pace, as most steps have such a piece, instead of standing still now and then. Where the
device reads more within a time that nobody sees, it may be longer. What a step without prompts
takes, and what a token of a prompt adds to it, are measured. Where nobody waits for a next token,
steps are as large as the budget of tokens says: prompts are read fastest then.
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
CROWD = 2
"""Times as many prompts as answers count as a crowd. Beside more answers long pieces would save all
of them a hundredth of their time, and cost each a pause."""
HARDLY_LONGER = 1.15
"""Times what a token of a long piece takes that one of a shorter piece may take."""
ROUNDED_TO = 64
"""A piece is a multiple of this, as tiles of queries are."""
SHORTEST = 8
"""Part of what is well computed at once that a piece is in any case. A step of fewer tokens tells
nothing of what one takes: it takes what a step takes in any case."""
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
        self._plain: dict[int, float] = {}
        """Seconds of steps without prompts, by the power of two that holds their rows."""
        self._token_seconds: dict[int, float] = {}
        """What a token of a prompt adds to a step, by the power of two that holds the tokens."""

    def submitted(self, chunks: Sequence[ScheduledChunk], began: float) -> None:
        """Note that a step was handed to the runner, and when that began."""
        self._submitted[id(chunks)] = began

    def done(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Note that the oldest step has ended; of two in flight it began when that before ended."""
        ended = self.now()
        began = max(self._submitted.pop(id(chunks), self._last_ended), self._last_ended)
        self._last_ended = ended
        num_tokens = sum([chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"])
        num_rows = sum([chunk.num_tokens for chunk in chunks if chunk.kind != "prefill"])
        self.note(num_rows, num_tokens, ended - began)

    def note(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Note what a step took.

        Args:
            num_rows: Of answers: tokens that are decoded, drafts.
            num_tokens: Of prompts.
            seconds: That it took.
        """
        if not num_tokens:
            bucket = (num_rows - 1).bit_length()
            self._plain[bucket] = _mixed(self._plain.get(bucket, 0.0), seconds)
        elif num_tokens >= self._well_at_once // SHORTEST:
            added = seconds - (self._plain_seconds(num_rows) if num_rows else 0.0)
            bucket, each = (num_tokens - 1).bit_length(), max(added, 0.0) / num_tokens
            self._token_seconds[bucket] = _mixed(self._token_seconds.get(bucket, 0.0), each)

    def expected_end(self, chunks: Sequence[ScheduledChunk]) -> float:
        """Return when the oldest step in flight should end; 0 where none like it was seen."""
        if not self._token_seconds:
            return 0.0
        num_tokens = sum([chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"])
        num_rows = sum([chunk.num_tokens for chunk in chunks if chunk.kind != "prefill"])
        began = max(self._submitted.get(id(chunks), self._last_ended), self._last_ended)
        plain = self._plain_seconds(num_rows) if num_rows else 0.0
        return began + plain + num_tokens * _nearest(self._token_seconds, num_tokens)

    def tokens_beside(self, num_rows: int, num_prompts: int) -> int:
        """Return how many tokens of prompts may be computed beside rows of answers.

        Args:
            num_rows: Of answers.
            num_prompts: Who wait for their first token.
        """
        if not num_rows:
            return self._most_tokens
        long = self._well_at_once
        is_crowd = num_prompts >= CROWD * num_rows
        # Together with the rows beside it a piece fills tiles: one row more is a whole tile more.
        piece = max((long if is_crowd else self._short_rows()) - num_rows, long // SHORTEST)
        plain = self._plain_seconds(num_rows)
        token_seconds = _nearest(self._token_seconds, long)
        if token_seconds:
            allowed = max(plain * STRETCH, LEAST_SECONDS) - plain
            unseen = int(allowed / token_seconds) // ROUNDED_TO * ROUNDED_TO
            piece = max(piece, unseen)
        return min(self._most_tokens, max(piece, 1))

    def _short_rows(self) -> int:
        """Return the rows of a step with a short piece: half of what is well computed at once.

        Where fewer were seen to take hardly longer each, as of a large model, they are enough.
        """
        long = self._well_at_once
        most = _nearest(self._token_seconds, long) * HARDLY_LONGER
        for part in (SHORTEST, SHORTEST // 2):
            rows = long // part
            if 0 < self._token_seconds.get((rows - 1).bit_length(), float("inf")) <= most:
                return rows
        return long // 2

    def _plain_seconds(self, num_rows: int) -> float:
        """Return what so many rows take alone: as measured, or what the nearest number did."""
        return _nearest(self._plain, num_rows)


def _nearest(known: dict[int, float], count: int) -> float:
    """Return what is known by the power of two that is nearest to a count; 0 where nothing is."""
    bucket = (count - 1).bit_length()
    nearest = min(known, key=lambda each: abs(each - bucket), default=None)
    return 0.0 if nearest is None else known[nearest]


def _mixed(old: float, newest: float) -> float:
    """Return what is believed after one more measurement."""
    if not old:
        return newest
    return old + _NEWEST_WEIGHS * (min(newest, old * _MOST_GROWTH) - old)
