"""The scheduler: which tokens of which sequences are computed in the next step. No tensors.

One token budget a step is spent on decodes first (they hold users' eyes), then on prompts in
progress in order of rank, then on waiting sequences in the order of their line (``WaitingLine``:
by priority and time of waiting, between tenants in fair shares). Room for a whole prompt is taken
when it is admitted, so only a decode that crosses into a new block can find the pool empty. It then
takes the blocks of the lowest-ranked running sequence, which waits and is computed again later. A
waiting sequence whose turn it is takes slot and blocks of running ones whose rank and priority are
both lower.

Why nothing starves: a rank is fixed at arrival and falls with arrival time, so only finitely many
sequences ever stand before a given one. Take the highest-ranked of all that are and will be. Once
it runs, nobody may take its blocks, and alone it always fits (the core refuses what cannot): it
finishes. While it waits, each admission is one of its class, which has the highest rank, and makes
its tenant's turn come nearer (``FairShare``); in its tenant's line it is the first. Room for the
next admission always comes: the highest-ranked running sequence finishes, by the same argument, or
is preempted for the one whose turn it is. So it runs, and then the next highest does.

A step may be planned while the one before it runs. Then the newest token of most sequences is
pending: its place is known, its value is not. A sequence that leaves meanwhile keeps its blocks
until the last step that uses them is done, and nobody is preempted. A sequence whose drafts are
being checked sits that step out: where it goes on is not known. So does one that has drafts to be
checked behind its pending token. Where most are checked, the step in flight is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.types import MAX_DRAFTS
from zse.engine.batch_admission import BatchAdmission
from zse.engine.chunks import Room, ScheduledChunk
from zse.engine.deferred_frees import DeferredFrees
from zse.engine.prompt_budget import PromptBudget
from zse.engine.running import Running
from zse.engine.waiting_line import WaitingLine
from zse.kv.table import BlockTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.sequence import Sequence
    from zse.kv.cache import KVCache

LAST_TOKENS = 64
"""The last tokens of the last prompt join the chunk before them, up to this many: a step of their
own would take longer. Where other prompts come behind, these tokens have room in their step: one
row more than fills the tiles of this one would cost it a tile more."""
MOST_BESIDE = 256
"""Most tokens of a step while others are in flight: a prompt is cut, so that all stages of a
pipeline have some of it to compute."""


class Scheduler:
    """Holds the waiting and the running sequences and plans steps.

    Args:
        max_batch_tokens: Token budget of a step.
        max_sequences: Most sequences that run at once, at most the budget.
        well_at_once, filled_rows: See ``PromptBudget``.
        most_drafts: Drafts that a step can check.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        well_at_once: int = MOST_BESIDE,
        filled_rows: Callable[[int], int] | None = None,
        most_drafts: int = MAX_DRAFTS,
    ) -> None:
        self._most_drafts = most_drafts
        self._num_given = 0
        """Drafts that have blocks since the last step was planned."""
        self._cache = cache
        self._block_size = cache.block_size
        self._max_batch_tokens = max_batch_tokens
        self.prompt_budget = PromptBudget(max_batch_tokens, well_at_once, filled_rows)
        """Learns from the time of each step how many prompt tokens the next may take."""
        num_slots = min(max_sequences, max_batch_tokens)
        self._deferred = DeferredFrees(cache, num_slots)
        self.waiting = WaitingLine()
        """Sequences without blocks."""
        self.running = Running()
        self.admission = BatchAdmission(cache, self.waiting, self.running, self._deferred)
        """Admits waiting sequences."""
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.add(sequence)

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
        self._admit_urgent()
        return self._fill(self._schedule_decodes())

    def schedule_ahead(self) -> list[ScheduledChunk]:
        """Plan the step after one that is in flight; sequences may be admitted on the way.

        Returns:
            As ``schedule_step``; empty also when the step in flight is better waited for.
        """
        if self._urgent() is not None:
            return []  # admitting it preempts others, whose newest tokens must be known for that
        chunks = self._schedule_pending()
        return [] if chunks is None else self._fill(chunks)

    def schedule_beside(
        self, num_wanted: int, num_in_flight: int, most_tokens: int = MOST_BESIDE
    ) -> list[ScheduledChunk]:
        """Plan a step of sequences that no step in flight computes a token for.

        Args:
            num_wanted: Steps that shall be in flight at once: each gets its share of sequences.
            num_in_flight: Steps that are. Only where there is none is anybody preempted.
            most_tokens: Of the step.

        Returns:
            As ``schedule_step``; empty also when a step in flight has to be waited for.
        """
        if num_in_flight and self._urgent() is not None:
            return []
        if not num_in_flight:
            self._admit_urgent()
        has_room = self._has_room if num_in_flight else self._make_room
        going_on = [s for s in self.running if s.num_remaining == 1]
        share = -(-len(going_on) // num_wanted)
        chunks: list[ScheduledChunk] = []
        for sequence in going_on:
            is_free = sequence.table is not None and not sequence.num_pending
            if is_free and len(chunks) < share and has_room(sequence):
                chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, "decode", 1))
        return self._fill(chunks, min(self._max_batch_tokens, most_tokens))

    def submitted(self, chunks: list[ScheduledChunk]) -> None:
        """Note that a step is in flight, and offer the blocks that it fills for reuse.

        Steps are computed in order, so what a later one reuses is there when it comes to it.
        """
        number = self._deferred.submitted()
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.last_step = number
            sequence.num_computed = chunk.start + chunk.num_tokens
            self.commit(sequence)
            self._note_states(chunk)
            if self._cache.has_windows:
                assert sequence.table is not None
                self._cache.advance(sequence.table, num_computed=chunk.num_certain)
            sequence.num_pending += chunk.num_wanted
            if sequence.reading is not None:
                sequence.reading.num_asked += chunk.num_read
            sequence.drafts = ()

    def done(self) -> None:
        """Note that the oldest step in flight is done, and give back what waited for it."""
        self._deferred.done()

    @property
    def has_prompts(self) -> bool:
        """Whether the next step has prompts to read, of who is here already."""
        return bool(self.waiting) or any(s.num_remaining > 1 for s in self.running)

    def commit(self, sequence: Sequence) -> None:
        """Offer the full blocks of a running sequence, as far as its tokens are known."""
        table = sequence.table
        assert table is not None
        num_known = min(sequence.num_computed, len(sequence.token_ids))
        if num_known < (table.num_cached + 1) * self._block_size:
            return
        replaced = self._cache.commit(table, sequence.token_ids, num_computed=num_known)
        if replaced:
            self._deferred.give_back(BlockTable(blocks=replaced), sequence.last_step)

    def _note_states(self, chunk: ScheduledChunk) -> None:
        """Publish the checkpoint of a state that a chunk saved; free the one it started from."""
        table = chunk.sequence.table
        assert table is not None
        if table.restored_from is not None:
            self._cache.state_restored(table)
        if chunk.saved_to is not None:
            end = chunk.sequence.num_computed
            self._cache.keep_state(table, chunk.saved_to, num_computed=end)

    def takes(self, sequence: Sequence, num_more: int) -> bool:
        """Give a running sequence room for more tokens, if nobody has to give up a block for it."""
        return self._has_room(sequence, num_more)

    def takes_drafts(self, sequence: Sequence, num_drafts: int) -> bool:
        """Give a running sequence blocks for drafts that are written before they are checked.

        Together no more are given than the next step checks: windows have room for a step.
        """
        num_given = self._num_given + num_drafts
        if num_given > self._room_for_drafts or not self._has_room(sequence, num_drafts):
            return False
        self._num_given = num_given
        if self._cache.has_windows:
            assert sequence.table is not None
            start = sequence.num_computed
            self._cache.cover(sequence.table, start=start, end=start + 1 + num_drafts)
        return True

    def tables(self) -> list[BlockTable]:
        """Return the tables that own blocks: of running sequences, and held for steps in flight."""
        running = [s.table for s in self.running if s.table is not None]
        return running + self._deferred.tables()

    def _fill(
        self, chunks: list[ScheduledChunk], most_tokens: int | None = None
    ) -> list[ScheduledChunk]:
        """Spend what decodes leave of the budget on drafts, prompts in progress, then arrivals.

        Without ``most_tokens``, prompts get no more tokens than ``prompt_budget`` allows beside the
        step's decodes, which wait for all of it.
        """
        prompts = [sequence for sequence in self.running if sequence.num_remaining > 1]
        beside = self._tokens_beside(len(chunks), prompts)
        num_drafts = self._add_drafts(chunks)
        most = self._max_batch_tokens if most_tokens is None else most_tokens
        left = budget = max(0, most - sum([chunk.num_tokens for chunk in chunks]))
        if most_tokens is None:
            budget = min(budget, beside)
        room = Room(
            cache=self._cache,
            num_tokens=budget,
            num_read=MAX_DRAFTS - num_drafts,
        )
        num_more = min(LAST_TOKENS, left - budget)
        for number, sequence in enumerate(prompts, start=1):
            if room.num_tokens:
                is_last = number == len(prompts) and not self._admits_more
                room.add(sequence, chunks, num_more=num_more if is_last else 0)
        while room.num_tokens and (admitted := self.admission.next()) is not None:
            room.add(admitted, chunks, num_more=0 if self._admits_more else num_more)
        if self._cache.has_windows:
            self._cover(chunks)
        return chunks

    @property
    def _admits_more(self) -> bool:
        """Whether a waiting sequence may have its turn."""
        return bool(self.waiting) and self.admission.has_slot

    def _tokens_beside(self, num_rows: int, prompts: list[Sequence]) -> int:
        """Return how many tokens of prompts a step takes beside rows of answers."""
        if not prompts and not self.waiting:
            return self._max_batch_tokens
        waiting = [*prompts, *self.waiting] if self._admits_more else prompts
        tokens = sum([sequence.num_remaining for sequence in waiting])
        return self.prompt_budget.tokens_beside(num_rows, len(waiting), tokens)

    def _cover(self, chunks: list[ScheduledChunk]) -> None:
        """Allocate the blocks that sliding-window layers need; their pools never run dry."""
        for chunk in chunks:
            table, start = chunk.sequence.table, chunk.start
            assert table is not None
            self._cache.cover(table, start=start, end=start + chunk.num_tokens)

    def _schedule_decodes(self) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for sequence in [s for s in self.running if s.num_remaining == 1]:
            if sequence.table is None:
                continue  # preempted for one that stands before it
            if self._make_room(sequence):
                chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, "decode", 1))
        return chunks

    def _schedule_pending(self) -> list[ScheduledChunk] | None:
        """Plan decodes of sequences whose newest token is pending; None: wait for it first."""
        chunks: list[ScheduledChunk] = []
        num_left_out = 0
        for sequence in self.running:
            if sequence.num_remaining != 1 or sequence.num_left < 1:
                continue
            if sequence.num_pending > 1:
                num_left_out += 1
                continue  # how many of them stay is not known yet
            if sequence.num_pending and sequence.drafts:
                num_left_out += 1
                continue  # its token is waited for, since drafts of those behind it pay
            if self._has_room(sequence):
                chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, "decode", 1))
            else:
                return None  # a sequence must be preempted: the newest tokens must be known
        # A step of few rows takes nearly as long as one of all.
        return None if num_left_out > len(chunks) else chunks

    def _add_drafts(self, chunks: list[ScheduledChunk]) -> int:
        """Let decode chunks check their sequences' drafts, as far as there is room for them.

        Everybody's next token has its place and its block before any draft gets one. Returns how
        many are checked.
        """
        most = left = self._room_for_drafts
        self._num_given = 0
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

    @property
    def _room_for_drafts(self) -> int:
        return min(self._most_drafts, self._max_batch_tokens - len(self.running))

    def _has_room(self, sequence: Sequence, num_drafts: int = 0) -> bool:
        table = sequence.table
        assert table is not None
        num_tokens = sequence.num_tokens + num_drafts
        if num_tokens <= len(table.blocks) * self._block_size:  # nearly always
            return True
        return self._cache.grow_table(table, num_tokens=num_tokens)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a running sequence the block its next token needs, preempting others for it."""
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

    def preempt_all(self) -> int:
        """Preempt every running sequence; return how many there were. Their tokens stay.

        No step may be in flight. All blocks are free afterwards.
        """
        running = list(self.running)
        for sequence in reversed(running):
            self._preempt(sequence)
        return len(running)

    def _admit_urgent(self) -> None:
        """Admit sequences whose turn it is by preempting running ones of lower priority."""
        while (urgent := self._urgent()) is not None:
            while not (self.admission.has_slot and self.admission.admit(urgent)):
                victims = self.running.victims_of(urgent)
                if not victims:
                    return
                self._preempt(victims[0])

    def _urgent(self) -> Sequence | None:
        """Return the first sequence in line if it fits by preemption, and in no other way."""
        if not self.waiting or not self.running.has_lower_than(self.waiting.top_priority):
            return None  # nearly always
        sequence = self.admission.first_in_line()
        if sequence is None:
            return None
        num_needed = self._cache.blocks_for(sequence.num_tokens) + len(self.running)
        num_available = self._cache.num_available
        most_tokens, fits = sequence.most_tokens, self._cache.fits
        if self.admission.has_slot and num_needed <= num_available and fits(most_tokens):
            return None
        victims = self.running.victims_of(sequence)
        tables = [table for one in victims if (table := one.table) is not None]
        # What they share is counted for each of them, so this is at most too many.
        num_taken = sum(len(table.blocks) for table in tables)
        has_room = num_needed <= num_available + num_taken and fits(most_tokens, tables)
        return sequence if tables and has_room else None

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.admission.charge(sequence, sequence.num_computed)
        table, slot = sequence.table, sequence.slot
        sequence.table = None
        sequence.slot = -1
        self.running.leave(sequence)
        self._deferred.give_back(table, sequence.last_step, slot)


ContinuousBatchingScheduler = Scheduler
"""An alias, for programs that know the class by this name."""
