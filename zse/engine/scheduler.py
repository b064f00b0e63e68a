"""The scheduler: which tokens of which sequences are computed in the next step. No tensors.

One token budget a step is spent on decodes first (they hold users' eyes), then on prompts in
progress, then on waiting sequences, each in order of rank. Room for a whole prompt is taken when it
is admitted, so only a decode that crosses into a new block can find the pool empty. It then takes
the blocks of the lowest-ranked running sequence, which waits and is computed again later.

Why nothing starves: a rank is fixed at arrival and falls with arrival time, so only finitely many
sequences ever stand before a given one. The highest-ranked running sequence is never preempted for
another, and alone it always fits (the core refuses what cannot): it finishes, then the next does.

A step may be planned while the one before it runs. Then the newest token of most sequences is
pending: its place is known, its value is not. A sequence that leaves meanwhile keeps its blocks
until the last step that uses them is done, and nobody is preempted. A sequence whose drafts are
being checked sits that step out: where it goes on is not known.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zse.backends.types import MAX_DRAFTS, kind_of
from zse.kv.cache import BlockTable
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.types import StepKind
    from zse.engine.sequence import Sequence
    from zse.kv.cache import KVCache


class ScheduledChunk(NamedTuple):
    """Tokens [start, start + num_tokens) of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int
    kind: StepKind
    num_wanted: int
    """Tokens asked for: one where the chunk reaches the sequence's last token, with drafts one for
    each of its tokens."""
    num_read: int = 0
    """Tokens before these that are asked about, though their successors are known."""


@record
class _Held:
    """What is given back once step ``last_step`` is done."""

    last_step: int
    table: BlockTable
    slot: int = -1


def rank_of(*, priority: int, arrival: int, step: int, aging_steps: int) -> tuple[int, int]:
    """Return the fixed rank of an arrival; larger goes first.

    Waiting raises everybody's priority by one each ``aging_steps`` steps. As all age alike, the
    order between two requests never changes and can be written down at arrival: in which step, and
    as which arrival of all.
    """
    return (priority * aging_steps - step, -arrival)


class Scheduler:
    """Holds the waiting and the running sequences and plans steps.

    Args:
        max_batch_tokens: Token budget of a step.
        max_sequences: Most sequences that run at once, at most the budget.
    """

    def __init__(self, cache: KVCache, *, max_batch_tokens: int, max_sequences: int) -> None:
        self._cache = cache
        self._block_size = cache.block_size
        self._max_batch_tokens = max_batch_tokens
        num_slots = min(max_sequences, max_batch_tokens)
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self.max_running = num_slots
        """Sequences that run at once from now on; what runs already is let end."""
        self.waiting: list[Sequence] = []
        """Sequences without blocks: lowest rank first, so the next one is at the end."""
        self.running: list[Sequence] = []
        """Sequences with blocks, highest rank first."""
        self._held: list[_Held] = []
        self._num_submitted = 0
        self._num_done = 0
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda waiting: waiting.rank)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give its blocks back."""
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)

    def schedule_step(self) -> list[ScheduledChunk]:
        """Plan one step; sequences may be admitted and preempted on the way.

        Nothing may be in flight.

        Returns:
            Chunks of distinct sequences, at most the budget together; empty when nothing can run.
        """
        return self._fill(self._schedule_decodes())

    def schedule_ahead(self) -> list[ScheduledChunk]:
        """Plan the step after one that is in flight; sequences may be admitted on the way.

        Returns:
            As ``schedule_step``; empty also when the step in flight is better waited for.
        """
        chunks = self._schedule_pending()
        return [] if chunks is None else self._fill(chunks)

    def submitted(self, chunks: list[ScheduledChunk]) -> None:
        """Note that a step is in flight, and offer the blocks that it fills for reuse.

        Steps are computed in order, so what a later one reuses is there when it comes to it.
        """
        self._num_submitted += 1
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.last_step = self._num_submitted
            sequence.num_computed = chunk.start + chunk.num_tokens
            self.commit(sequence)
            sequence.num_pending += chunk.num_wanted
            if sequence.reading is not None:
                sequence.reading.num_asked += chunk.num_read
            sequence.drafts = ()

    def done(self) -> None:
        """Note that the oldest step in flight is done, and give back what waited for it."""
        self._num_done += 1
        if self._held:
            held, self._held = self._held, []
            for item in held:
                self._give_back(item)

    def commit(self, sequence: Sequence) -> None:
        """Offer the full blocks of a running sequence, as far as its tokens are known."""
        table = sequence.table
        assert table is not None
        num_known = min(sequence.num_computed, len(sequence.token_ids))
        if num_known < (table.num_cached + 1) * self._block_size:
            return
        replaced = self._cache.commit(table, sequence.token_ids, num_computed=num_known)
        if replaced:
            given_up = BlockTable(blocks=replaced)
            self._give_back(_Held(last_step=sequence.last_step, table=given_up))

    def tables(self) -> list[BlockTable]:
        """Return the tables that own blocks: of running sequences, and held for steps in flight."""
        running = [s.table for s in self.running if s.table is not None]
        return running + [item.table for item in self._held]

    def _fill(self, chunks: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Spend what decodes leave of the budget on drafts, prompts in progress, then arrivals."""
        num_drafts = self._add_drafts(chunks)
        budget = self._max_batch_tokens - sum([chunk.num_tokens for chunk in chunks])
        room = _Room(num_tokens=budget, num_read=MAX_DRAFTS - num_drafts)
        for sequence in self.running:
            if room.num_tokens and sequence.num_remaining > 1:
                room.add(sequence, chunks)
        while room.num_tokens and (admitted := self._admit_next()) is not None:
            room.add(admitted, chunks)
        return chunks

    def _schedule_decodes(self) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for sequence in [s for s in self.running if s.num_remaining == 1]:
            if sequence.table is None:
                continue  # preempted for one that stands before it
            if self._make_room(sequence):
                chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, "decode", 1))
        return chunks

    def _schedule_pending(self) -> list[ScheduledChunk] | None:
        """Let sequences in decode go on before their newest token is known; None: wait for it."""
        chunks: list[ScheduledChunk] = []
        for sequence in self.running:
            if sequence.num_remaining != 1 or sequence.num_left < 1:
                continue
            if sequence.num_pending > 1:
                continue  # how many of them stay is not known yet
            if self._has_room(sequence):
                chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, "decode", 1))
            else:
                return None  # somebody must be preempted, and that takes a host that knows all
        return chunks

    def _add_drafts(self, chunks: list[ScheduledChunk]) -> int:
        """Let decode chunks check their sequences' drafts, as far as there is room for them.

        Everybody's next token has its place and its block before any draft gets one. Returns how
        many are checked.
        """
        most = left = min(MAX_DRAFTS, self._max_batch_tokens - len(self.running))
        for index, chunk in enumerate(chunks):
            sequence = chunk.sequence
            if not sequence.drafts or sequence.num_pending:
                continue
            num_drafts = min(len(sequence.drafts), left, sequence.num_left - 1)
            if num_drafts > 0 and self._has_room(sequence, num_drafts):
                length = 1 + num_drafts
                chunks[index] = ScheduledChunk(sequence, chunk.start, length, "verify", length)
                left -= num_drafts
        return most - left

    def _has_room(self, sequence: Sequence, num_drafts: int = 0) -> bool:
        table = sequence.table
        assert table is not None
        num_tokens = sequence.num_tokens + num_drafts
        if num_tokens <= len(table.blocks) * self._block_size:  # nearly always
            return True
        return self._cache.grow_table(table, num_tokens=num_tokens)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a running sequence the block its next token needs, at others' cost if it must."""
        while sequence.table is not None:
            if self._has_room(sequence):
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._stop_running(sequence)
        sequence.num_computed = 0
        self.add(sequence)

    def _admit_next(self) -> Sequence | None:
        """Move the first sequence in line to the running ones; None when it has to wait."""
        position = self._next_position()
        if position is None or not self._has_slot:
            return None
        sequence = self.waiting[position]
        # A leader that still holds blocks has computed its prompt, or this one would not be next.
        parent = sequence.leader.table if sequence.leader is not None else None
        table = self._cache.open_table(
            sequence.token_ids,
            namespace=sequence.request.cache_salt,
            parent=parent,
            num_parent_tokens=len(sequence.prompt_token_ids),
            # A block for each running sequence: admitting must not force a preemption at once.
            num_reserved=len(self.running),
            most_reused=None if sequence.reading is None else sequence.reading.most_reused,
        )
        if table is None:
            return None
        del self.waiting[position]
        sequence.table = table
        sequence.slot = self._free_slots.pop()
        sequence.num_computed = table.num_reused_tokens
        if sequence.cached_tokens is None:  # what it finds again after a preemption is its own
            sequence.cached_tokens = table.num_reused_tokens
            self.num_prefix_queries += sequence.num_tokens
            self.num_prefix_hits += table.num_reused_tokens
        bisect.insort(self.running, sequence, key=lambda other: (-other.rank[0], -other.rank[1]))
        return sequence

    @property
    def _has_slot(self) -> bool:
        return bool(self._free_slots) and len(self.running) < self.max_running

    def _next_position(self) -> int | None:
        """Index of the first sequence in line that need not wait for its leader's prompt."""
        for position in range(len(self.waiting) - 1, -1, -1):
            leader = self.waiting[position].leader
            if leader is None or leader.table is None or leader.is_prompt_computed:
                return position
        return None

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        held = _Held(last_step=sequence.last_step, table=sequence.table, slot=sequence.slot)
        sequence.table = None
        sequence.slot = -1
        self.running.remove(sequence)
        self._give_back(held)

    def _give_back(self, item: _Held) -> None:
        """Free blocks and slot, or hold them while a step that uses them is in flight."""
        if item.last_step > self._num_done:
            self._held.append(item)
            return
        self._cache.close_table(item.table)
        if item.slot >= 0:
            self._free_slots.append(item.slot)


@dataclass(kw_only=True)
class _Room:
    """What prompts may still take of a step."""

    num_tokens: int
    num_read: int
    """Tokens that may be asked about though their successors are known."""

    def add(self, sequence: Sequence, chunks: list[ScheduledChunk]) -> None:
        """Add the next chunk of a prompt; none where it may ask about no token."""
        start, num_read = sequence.num_computed, 0
        num_tokens = min(sequence.num_remaining, self.num_tokens)
        if (reading := sequence.reading) is not None:
            num_read = reading.num_rows(start + num_tokens)
            if num_read > self.num_read:
                num_read = self.num_read
                num_tokens = reading.num_asked + num_read - start
        if num_tokens <= 0:
            return
        num_wanted = int(num_tokens == sequence.num_remaining)
        kind = kind_of(num_tokens)
        chunks.append(ScheduledChunk(sequence, start, num_tokens, kind, num_wanted, num_read))
        self.num_tokens -= num_tokens
        self.num_read -= num_read
