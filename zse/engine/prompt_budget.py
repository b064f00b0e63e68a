"""Chunked prefill: how many prompt tokens a step computes beside decodes, from measured times.

Every decode of a step waits for all of it, so the chunk of a prompt beside decodes is bounded. Its
length depends on who waits:

- A few prompts: up to ``well_at_once`` rows in all where as many sequences wait as decode, else up
  to half of that.
- Many prompts, at least two for each decoding sequence: long chunks, since few are held up.
- Very many prompts: ``well_at_once`` rows, however many decode. Shorter steps would make those who
  come last wait longest.
- Many prompts beside more decodes: chunks a little longer than usual, so that most steps have one
  and answers go on at an even pace instead of stalling now and then.
- In any case as long as the step stays within a time that nobody notices.
- No decodes at all: as large as the token budget of a step, which reads prompts fastest.

The time of a step without prompts, and what each prompt token adds to it, are measured.

The lengths were tried on the scheduler alone (``scripts/bench/simulated_rows.py``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.chunks import ScheduledChunk

STRETCH = 2.2
"""A step with a chunk of a prompt may take this many times as long as one without."""
LEAST_SECONDS = 0.016
"""A step may take so long in any case: nobody notices, and shorter chunks would slow prompts."""
PROMPTS_EACH = 2
"""Waiting prompts for each decoding sequence from which on few are held up by what many gain."""
LONGEST_SECONDS = 0.06
"""What a step may take then."""
CROWD_STEPS = 4
"""Prompts count as many (a crowd) when they fill so many steps of ``well_at_once`` rows."""
THRONG_STEPS = 16
"""Steps that very many prompts fill."""
CROWD_SHARE = 5 / 8
"""Share of ``well_at_once`` that a step's rows may be where many decode beside a crowd."""
ROUNDED_TO = 64
"""A chunk is a multiple of this, as the tiles of attention are."""
_FEWEST_TOKENS = 256
"""Prompt tokens of a step from which on it tells what a token costs: fewer cost next to nothing
beside the step itself."""
_NEWEST_WEIGHS = 0.25
_MOST_GROWTH = 1.5
"""A measurement counts as at most so many times the estimate: longer ones were interruptions."""


class PromptBudget:
    """Measures steps, and says how many tokens of prompts the next one may take.

    Args:
        most_tokens: Of any step.
        well_at_once: Rows of a step that use the device fully: more give hardly more throughput.
        filled_rows: Says of how many rows at most a step best has how many; None: of all.
        now: Seconds of a clock.
    """

    def __init__(
        self,
        most_tokens: int,
        well_at_once: int,
        filled_rows: Callable[[int], int] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most_tokens = most_tokens
        self._well_at_once = min(well_at_once, most_tokens)
        self._filled_rows = filled_rows or (lambda most_rows: most_rows)
        self.now = now
        self._submitted: dict[int, float] = {}
        """When the steps in flight were handed over, by the identity of their chunks."""
        self._last_ended = now()
        self._last_was_over = False
        """Whether it had ended at some unknown time before that."""
        self._plain: dict[int, float] = {}
        """Seconds of steps without prompts, by the power of two that holds their rows."""
        self._token_seconds = 0.0
        """What a prompt token adds to a step; 0 until one was measured."""

    @property
    def last_ended(self) -> float:
        """When the newest step was seen to have ended."""
        return self._last_ended

    def submitted(self, chunks: Sequence[ScheduledChunk], began: float) -> None:
        """Note that a step was handed to the runner, and when that began."""
        self._submitted[id(chunks)] = began

    def done(self, chunks: Sequence[ScheduledChunk], *, was_over: bool = False) -> None:
        """Note that the oldest step has ended. With two in flight it began when the last one ended.

        Args:
            was_over: Whether it had ended before the host looked: the time is an upper bound.
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
            num_rows: Decoded tokens and drafts.
            num_tokens: Prompt tokens.
            seconds: What it took.
            is_bound: Whether that is an upper bound.
        """
        bucket = (num_rows - 1).bit_length()
        if is_bound:  # it can only lower an estimate that there is
            if not num_tokens and bucket in self._plain:
                self._plain[bucket] = min(self._plain[bucket], seconds)
        elif not num_tokens:
            self._plain[bucket] = _mixed(self._plain.get(bucket, 0.0), seconds)
        elif num_tokens >= min(_FEWEST_TOKENS, self._well_at_once):
            added = seconds - (self._plain_seconds(num_rows) if num_rows else 0.0)
            self._token_seconds = _mixed(self._token_seconds, max(added, 0.0) / num_tokens)

    def expected_end(self, chunks: Sequence[ScheduledChunk]) -> float:
        """Return when the oldest step in flight should end; 0 before anything was measured.

        Rather too early than too late: a token costs more in a short chunk than in a long one.
        """
        if not self._token_seconds:
            return 0.0
        num_tokens = sum([chunk.num_tokens for chunk in chunks if chunk.kind == "prefill"])
        num_rows = sum([chunk.num_tokens for chunk in chunks if chunk.kind != "prefill"])
        began = max(self._submitted.get(id(chunks), self._last_ended), self._last_ended)
        plain = self._plain_seconds(num_rows) if num_rows else 0.0
        return began + plain + num_tokens * self._token_seconds

    def tokens_beside(self, num_rows: int, num_prompts: int, prompt_tokens: int) -> int:
        """Return how many prompt tokens a step may compute beside its decodes.

        Args:
            num_rows: Rows of decodes.
            num_prompts: Sequences that wait for their first token.
            prompt_tokens: What is left to compute of their prompts.
        """
        if not num_rows:
            return self._most_tokens
        rows = self._rows_of_step(num_rows, num_prompts, prompt_tokens)
        if self._token_seconds:
            plain = self._plain_seconds(num_rows)
            allowed = max(plain * STRETCH, LEAST_SECONDS) - plain
            rows = max(rows, num_rows + self._tokens_within(allowed))
        # Chunk and decodes together fill whole tiles: one row more would cost a tile more.
        piece = max(self._filled_rows(rows) - num_rows, self._well_at_once // 4)
        return min(self._most_tokens, max(piece, 1))

    def _rows_of_step(self, num_rows: int, num_prompts: int, prompt_tokens: int) -> int:
        """Return how many rows a step may have, decodes included."""
        well = self._well_at_once
        if prompt_tokens < CROWD_STEPS * well:
            return well if num_prompts >= num_rows else well // 2
        if num_prompts < PROMPTS_EACH * num_rows:
            return well if prompt_tokens >= THRONG_STEPS * well else int(well * CROWD_SHARE)
        if not self._token_seconds:
            return well
        glance = self._tokens_within(LONGEST_SECONDS - self._plain_seconds(num_rows))
        return min(max(glance + num_rows, well), 2 * well)

    def _tokens_within(self, seconds: float) -> int:
        return int(seconds / self._token_seconds) // ROUNDED_TO * ROUNDED_TO

    def _plain_seconds(self, num_rows: int) -> float:
        """Return the seconds of a step of decodes alone: measured for so many rows, or nearly."""
        bucket = (num_rows - 1).bit_length()
        nearest = min(self._plain, key=lambda known: abs(known - bucket), default=None)
        return 0.0 if nearest is None else self._plain[nearest]


def _mixed(old: float, newest: float) -> float:
    """Return a moving average with one more measurement in it."""
    if not old:
        return newest
    return old + _NEWEST_WEIGHS * (min(newest, old * _MOST_GROWTH) - old)
