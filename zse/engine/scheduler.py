"""The scheduler: which tokens of which sequences are computed in the next step. No tensors.

One token budget a step is spent on decodes first (they hold users' eyes), then on prompts in
progress, then on waiting sequences, each in order of rank. Room for a whole prompt is taken when it
is admitted, so only a decode that crosses into a new block can find the pool empty. It then takes
the blocks of the lowest-ranked running sequence, which waits and is computed again later.

Why nothing starves: a rank is fixed at arrival and falls with arrival time, so only finitely many
sequences ever stand before a given one. The highest-ranked running sequence is never preempted for
another, and alone it always fits (the core refuses what cannot): it finishes, then the next does.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.sequence import Sequence
    from zse.kv.cache import KVCache


@dataclass(frozen=True, kw_only=True)
class ScheduledChunk:
    """Tokens [start, start + num_tokens) of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def wants_token(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one can be chosen."""
        return self.start + self.num_tokens == self.sequence.num_tokens


def rank_of(*, priority: int, arrival: int, step: int, aging_steps: int) -> tuple[int, int]:
    """Return the fixed rank of an arrival; larger goes first.

    Waiting raises everybody's priority by one each ``aging_steps`` steps. As all age alike, the
    order between two requests never changes and can be written down at arrival.

    Args:
        priority: As requested.
        arrival: Running number of the arrival, for order within a step.
        step: Steps done when it arrived.
        aging_steps: Steps of waiting that outweigh one unit of priority.
    """
    return (priority * aging_steps - step, -arrival)


class Scheduler:
    """Holds the waiting and the running sequences and plans steps.

    Args:
        cache: Where blocks come from.
        max_batch_tokens: Token budget of a step.
        max_sequences: Most sequences that run at once, at most the budget.
    """

    def __init__(self, cache: KVCache, *, max_batch_tokens: int, max_sequences: int) -> None:
        self._cache = cache
        self._max_batch_tokens = max_batch_tokens
        num_slots = min(max_sequences, max_batch_tokens)
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._waiting: list[Sequence] = []  # lowest rank first, so the next one is at the end
        self._running: list[Sequence] = []  # highest rank first
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences without blocks, the next to be admitted last."""
        return self._waiting

    @property
    def running(self) -> list[Sequence]:
        """Sequences with blocks, highest rank first."""
        return self._running

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in line."""
        bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.rank)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give its blocks back."""
        if sequence.table is None:
            self._waiting.remove(sequence)
        else:
            self._stop_running(sequence)

    def schedule_step(self) -> list[ScheduledChunk]:
        """Plan one step; sequences may be admitted and preempted on the way.

        Returns:
            Chunks of distinct sequences, at most the budget together; empty when nothing can run.
        """
        chunks = self._schedule_decodes()
        budget = self._max_batch_tokens - len(chunks)
        decoding = {chunk.sequence.slot for chunk in chunks}
        for sequence in self._running:
            if budget and sequence.slot not in decoding:
                chunks.append(_chunk_of(sequence, budget))
                budget -= chunks[-1].num_tokens
        while budget and (admitted := self._admit_next()) is not None:
            chunks.append(_chunk_of(admitted, budget))
            budget -= chunks[-1].num_tokens
        return chunks

    def complete(self, chunk: ScheduledChunk) -> None:
        """Note that a chunk has been computed, and offer its full blocks for reuse."""
        sequence = chunk.sequence
        assert sequence.table is not None
        sequence.num_computed = chunk.start + chunk.num_tokens
        self._cache.commit(sequence.table, sequence.token_ids, num_computed=sequence.num_computed)

    def _schedule_decodes(self) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for sequence in [s for s in self._running if s.num_remaining == 1]:
            if sequence.table is None:
                continue  # preempted for one that stands before it
            if self._make_room(sequence):
                chunks.append(_chunk_of(sequence, 1))
        return chunks

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a running sequence the block its next token needs, at others' cost if it must."""
        while sequence.table is not None:
            if self._cache.grow_table(sequence.table, num_tokens=sequence.num_tokens):
                return True
            self._preempt(self._running[-1])
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._stop_running(sequence)
        sequence.num_computed = 0
        self.add(sequence)

    def _admit_next(self) -> Sequence | None:
        """Move the first sequence in line to the running ones; None when it has to wait."""
        position = self._next_position()
        if position is None or not self._free_slots:
            return None
        sequence = self._waiting[position]
        # A leader that still holds blocks has computed its prompt, or this one would not be next.
        parent = sequence.leader.table if sequence.leader is not None else None
        table = self._cache.open_table(
            sequence.token_ids,
            namespace=sequence.request.cache_salt,
            parent=parent,
            num_parent_tokens=len(sequence.prompt_token_ids),
            # A block for each running sequence: admitting must not force a preemption at once.
            num_reserved=len(self._running),
        )
        if table is None:
            return None
        del self._waiting[position]
        sequence.table = table
        sequence.slot = self._free_slots.pop()
        sequence.num_computed = table.num_reused_tokens
        if sequence.cached_tokens is None:  # what it finds again after a preemption is its own
            sequence.cached_tokens = table.num_reused_tokens
            self.num_prefix_queries += sequence.num_tokens
            self.num_prefix_hits += table.num_reused_tokens
        bisect.insort(self._running, sequence, key=_descending_rank)
        return sequence

    def _next_position(self) -> int | None:
        """Index of the first sequence in line that need not wait for its leader's prompt."""
        for position in range(len(self._waiting) - 1, -1, -1):
            leader = self._waiting[position].leader
            if leader is None or leader.table is None or leader.is_prompt_computed:
                return position
        return None

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self._cache.close_table(sequence.table)
        sequence.table = None
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self._running.remove(sequence)


def _descending_rank(sequence: Sequence) -> tuple[int, int]:
    return (-sequence.rank[0], -sequence.rank[1])


def _chunk_of(sequence: Sequence, budget: int) -> ScheduledChunk:
    return ScheduledChunk(
        sequence=sequence,
        start=sequence.num_computed,
        num_tokens=min(sequence.num_remaining, budget),
    )
