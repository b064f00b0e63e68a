"""Drafts from a second, smaller model in the same process.

It writes a few tokens of every sequence that asks for some, one step of its own for each token of
all of them. Its keys and values are in a pool of its own; of what it wrote there, what the large
model did not choose is written over, as in any engine.

A token is drawn with the seed and the place that the large model will draw with. Where both models
believe the same, both draw the same token then, at any temperature.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.drafting.drafter import MOST_DRAFTS_EACH, NO_OFFER, Offer
from zse.engine.drafting.likely_row import likely_row
from zse.engine.drafting.tally import Tally
from zse.kv.cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from zse.backends.types import SampledToken
    from zse.engine.sequence import Sequence
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.kv.table import BlockTable
    from zse.models.runner import ModelRunner

_FIRST_RATE = 0.7
_UNASKED_WEIGHS = 0.05
"""Guesses, at the first rate, that each step counts as: a model that has not paid is tried again
after some hundred steps."""
_NEWEST_WEIGHS = 0.1
_SHORT_TOKENS = 4
"""Tokens of each sequence up to which a step is one that makes a draft, and reads no prompt."""


class ModelDrafter:
    """See ``Drafter``.

    Args:
        runner: The small model, each of whose steps is waited for; closed with the drafter.
        most_tokens: Tokens of prompts that it reads between two steps at most.
        num_sequences: Sequences that it follows at once.
        vocab_size: Tokens that the large model knows.
        close_file: Closes the small model's file.
        now: A clock in seconds.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        most_tokens: int,
        num_sequences: int,
        vocab_size: int,
        close_file: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._seconds_each = 0.0
        self._runner = runner
        self._cache = KVCache(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            prefix_cache=False,
            windows=runner.windows,
        )
        self._most_tokens = most_tokens
        self._num_known = min(vocab_size, runner.vocab_size)
        self._close_file = close_file
        self._now = now
        self._free_slots = list(range(num_sequences - 1, -1, -1))
        self._followed: dict[Sequence, Followed] = {}
        self._tally = Tally((_FIRST_RATE,))

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        return [self._offer(sequence) for sequence in sequences]

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        asked = [(self._followed[sequence], count) for sequence, count in wanted]
        room, writing = self._most_tokens, []
        for followed, count in asked:
            followed.begin(count, room, self._num_known)
            if followed.next and self._grow(followed, count):
                room -= len(followed.next)
                writing.append(followed)
        while writing:
            is_short = max(len(one.next) for one in writing) <= _SHORT_TOKENS
            began = self._now()
            self._write(writing)
            if is_short:
                self._note(self._now() - began)
            writing = [one for one in writing if one.next]
        return [followed.drafts for followed, _ in asked]

    def observe(self, sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        num_judged = min(num_checked, num_accepted + 1)  # behind a wrong one nothing is known
        self._tally.count(0, num_judged, num_accepted)
        if (followed := self._followed.get(sequence)) is not None:
            followed.tally.count(0, num_judged, num_accepted)

    def forget(self, sequence: Sequence) -> None:
        if (followed := self._followed.pop(sequence, None)) is not None:
            self._cache.close_table(followed.table)
            self._free_slots.append(followed.slot)

    def close(self) -> None:
        try:
            self._runner.close()
        finally:
            self._close_file()

    def _offer(self, sequence: Sequence) -> Offer:
        followed = self._followed.get(sequence) or self._follow(sequence)
        if followed is None:
            return NO_OFFER
        followed.tally.count(0, _UNASKED_WEIGHS, _UNASKED_WEIGHS * _FIRST_RATE)
        room = self._runner.max_position - sequence.num_tokens
        most = max(0, min(MOST_DRAFTS_EACH, room))
        return Offer(followed.tally.rate(0), most, self._seconds_each)

    def _can_follow(self, sequence: Sequence) -> bool:
        """Whether it knows a sequence's tokens; an adapter's are not what it would write."""
        return sequence.request.adapter is None and max(sequence.token_ids) < self._num_known

    def _followed_of(
        self, sequence: Sequence, table: BlockTable, slot: int, tally: Tally
    ) -> Followed:
        return Followed(sequence, table, slot, tally)

    def _follow(self, sequence: Sequence) -> Followed | None:
        """Begin with a sequence; None where it cannot, or has no room."""
        tokens = sequence.token_ids
        if not self._free_slots or not self._can_follow(sequence):
            return None
        if len(tokens) >= self._runner.max_position:
            return None
        table = self._cache.open_table(tokens, most_tokens=sequence.most_tokens)
        if table is None:
            return None
        slot = self._free_slots.pop()
        followed = self._followed_of(sequence, table, slot, self._tally.begin())
        self._followed[sequence] = followed
        return followed

    def _grow(self, followed: Followed, count: int) -> bool:
        num_tokens = len(followed.sequence.token_ids) + count
        if self._cache.grow_table(followed.table, num_tokens=num_tokens):
            return True
        followed.next = []
        return False

    def _write(self, writing: Many[Followed]) -> None:
        """Compute the next tokens of each sequence; behind known tokens stands a draft then."""
        for one in writing:
            start = len(one.written)
            self._cache.cover(one.table, start=start, end=start + len(one.next))
        chunks = [
            SequenceChunk(
                one.slot,
                one.next,
                len(one.written),
                one.table.blocks,
                kind_of(len(one.next)),
                windows=one.table.windows,
                joined=one.joined(),
            )
            for one in writing
        ]
        sampling = [one.rows() for one in writing]
        answers = self._runner.execute(StepBatch(chunks=chunks, sampling=sampling))
        for one, answer in zip(writing, answers, strict=True):
            one.take(answer[0] if answer else None, self._num_known)
            self._cache.advance(one.table, num_computed=min(len(one.written), one.num_sure))

    def _note(self, seconds: float) -> None:
        newest = _NEWEST_WEIGHS if self._seconds_each else 1.0
        self._seconds_each += newest * (seconds - self._seconds_each)


class Followed:
    """A sequence that the small model writes along with."""

    shift = 0
    """Tokens of the sequence before the first one that it writes."""

    def __init__(self, sequence: Sequence, table: BlockTable, slot: int, tally: Tally) -> None:
        self.sequence = sequence
        self.table = table
        self.slot = slot
        self.tally = tally
        self.written: list[int] = []
        """Tokens whose keys and values are there; the last of them may be drafts."""
        self.num_sure = 0
        """Of these, as many as the sequence is known to have."""
        self.next: list[int] = []
        """Tokens of the next step; none where nothing more is asked for."""
        self.drafts: list[int] = []
        self._most = 0
        self._row = likely_row(sequence)

    def begin(self, most: int, room: int, num_known: int) -> None:
        """Plan to write up to so many drafts, behind as many known tokens as there is room for.

        Drafts that the sequence has not come to have are left behind. Nothing is written behind a
        token that the small model does not know.
        """
        tokens, written = self.sequence.token_ids, self.written
        end, shift = self.num_sure, self.shift
        num_tokens = len(tokens) - shift
        while end < min(len(written), num_tokens - 1) and written[end] == tokens[end + shift]:
            end += 1
        del written[end:]
        self.num_sure = end
        self.drafts = []
        self.next = tokens[end + shift : end + shift + room]
        if max(self.next, default=0) >= num_known:
            self.next = []
        self._most = most if end + len(self.next) == num_tokens else 0

    def joined(self) -> memoryview | None:
        """Return the states that the next tokens come with, where the small model wants any."""
        return None

    def rows(self) -> list[SamplingRow]:
        """Return how the next token is drawn: as the large model will draw it."""
        if not self._most:
            return []
        step = len(self.sequence.output_token_ids) + len(self.drafts)
        return [self._row.at_step(step, ())]

    def take(self, sampled: SampledToken | None, num_known: int) -> None:
        """Note that the next tokens are written, and a draft behind them, below ``num_known``."""
        self.written += self.next
        if not self.drafts:
            self.num_sure = len(self.written)
        self.next = []
        if self._most and sampled is not None and sampled.token_id < num_known:
            self.drafts.append(sampled.token_id)
            if len(self.drafts) < self._most:
                self.next = [sampled.token_id]
