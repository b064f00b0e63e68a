"""Admission to the batch: the first in line starts when there is a slot, and blocks, for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.deferred_frees import DeferredFrees
    from zse.engine.running import Running
    from zse.engine.sequence import Sequence
    from zse.engine.waiting_line import WaitingLine
    from zse.kv.cache import KVCache


class BatchAdmission:
    """Moves sequences from the waiting line into the running batch.

    Counts what the prefix cache spares them.
    """

    def __init__(
        self, cache: KVCache, waiting: WaitingLine, running: Running, deferred: DeferredFrees
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._deferred = deferred
        self.max_running = len(deferred.free_slots)
        """Sequences that run at once from now on; what runs already is let end."""
        self.num_prefix_queries = 0
        """Tokens of prompts that were looked up in the prefix cache."""
        self.num_prefix_hits = 0
        """Tokens of these that were found."""

    @property
    def has_slot(self) -> bool:
        return bool(self._deferred.free_slots) and len(self._running) < self.max_running

    def next(self) -> Sequence | None:
        """Move the first sequence in line to the running ones; None when it has to wait."""
        if not self._waiting or not self.has_slot:
            return None
        sequence = self.first_in_line()
        return sequence if sequence is not None and self.admit(sequence) else None

    def first_in_line(self) -> Sequence | None:
        """Return the waiting sequence whose turn it is, by what each tenant has used so far."""
        if self._waiting.is_contested:
            for running in self._running:
                self.charge(running, running.num_computed)
        return self._waiting.first()

    def admit(self, sequence: Sequence) -> bool:
        """Move a waiting sequence to the running ones; False when it does not fit."""
        # A leader that still holds blocks has computed its prompt, or this one would not be next.
        parent = sequence.leader.table if sequence.leader is not None else None
        table = self._cache.open_table(
            sequence.token_ids,
            namespace=sequence.request.namespace,
            parent=parent,
            num_parent_tokens=len(sequence.prompt_token_ids),
            # A block for each running sequence, or its next token would force a preemption.
            num_reserved=len(self._running),
            most_reused=None if sequence.reading is None else sequence.reading.most_reused,
            most_tokens=sequence.most_tokens,
        )
        if table is None:
            return False
        sequence.table = table
        sequence.slot = self._deferred.free_slots.pop()
        sequence.num_computed = sequence.num_charged = table.num_reused_tokens
        self._waiting.take(sequence)
        self.charge(sequence, sequence.num_tokens)  # before the next turn is decided
        if sequence.cached_tokens is None:  # what it finds again after a preemption is its own
            sequence.cached_tokens = table.num_reused_tokens
            self.num_prefix_queries += sequence.num_tokens
            self.num_prefix_hits += table.num_reused_tokens
            if sequence.request.on_start is not None:
                sequence.request.on_start()
        self._running.admit(sequence)
        return True

    def charge(self, sequence: Sequence, num_computed: int) -> None:
        """Count tokens of a sequence as its tenant's share, once."""
        if num_computed > sequence.num_charged:
            self._waiting.charge(sequence, num_computed - sequence.num_charged)
            sequence.num_charged = num_computed
