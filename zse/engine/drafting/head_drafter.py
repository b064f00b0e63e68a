"""Drafts from a head that the model's file has: one layer that was trained to guess on.

It is a model of one layer (``zse.models.guess.model_of``) whose token i comes with the model's
state of token i - 1. So it is one token behind in places, and reads all tokens of a sequence but
the first. Behind its own guesses its own states stand for the model's.

What it has of a sequence's beginning is what steps computed: where a prefix was found in the cache
of blocks, it begins behind that. It sees less then, and is wrong a little more often.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.engine.drafting.drafter import NO_OFFER, Offer
from zse.engine.drafting.model_drafter import Followed, ModelDrafter

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from zse.backends.types import SampledToken
    from zse.engine.drafting.tally import Tally
    from zse.engine.drafting.token_states import TokenStates
    from zse.engine.sequence import Sequence
    from zse.kv.table import BlockTable

_MOST_BEHIND = 64
"""Tokens that it stays behind while nobody asks: then they are read together."""


class HeadDrafter(ModelDrafter):
    """See ``Drafter`` and ``ModelDrafter``: the small model is a head."""

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        offers = super().offers(sequences)
        behind = [
            (sequence, 0)
            for sequence, offer in zip(sequences, offers, strict=True)
            if offer.most and self._head_of(sequence).num_behind > _MOST_BEHIND
        ]
        if behind:
            self.propose(behind)
        return offers

    def _offer(self, sequence: Sequence) -> Offer:
        offer = super()._offer(sequence)
        return offer if offer.most and self._head_of(sequence).catch_up() else NO_OFFER

    def _can_follow(self, sequence: Sequence) -> bool:
        return sequence.states is not None

    def _followed_of(
        self, sequence: Sequence, table: BlockTable, slot: int, tally: Tally
    ) -> Followed:
        return FollowedByHead(sequence, table, slot, tally)

    def _head_of(self, sequence: Sequence) -> FollowedByHead:
        followed = self._followed[sequence]
        assert isinstance(followed, FollowedByHead)
        return followed


class FollowedByHead(Followed):
    """A sequence that a head reads along with, from the first token on whose state is there."""

    def __init__(self, sequence: Sequence, table: BlockTable, slot: int, tally: Tally) -> None:
        super().__init__(sequence, table, slot, tally)
        assert sequence.states is not None
        self._states: TokenStates = sequence.states
        self._last: array[float] | None = None
        """Its own state behind the newest draft."""
        self._row = replace(self._row, wants_hidden=True)
        self.shift = 1

    @property
    def num_behind(self) -> int:
        return len(self.sequence.token_ids) - self.shift - self.num_sure

    def catch_up(self) -> bool:
        """Begin anew where states are gone that were not read; return whether all others are there.

        Its first token is the one behind the first state.
        """
        first_unread = self.shift - 1 + self.num_sure
        self._states.drop(first_unread - 1)  # the last one is read again
        if self._states.first > first_unread:
            self.shift = self._states.first + 1
            self.num_sure = 0
            self.written.clear()
        return self._states.end >= len(self.sequence.token_ids) - 1

    def begin(self, most: int, room: int, num_known: int) -> None:
        super().begin(most, room, num_known)
        self._last = None
        if not most and self.num_behind == len(self.next) + len(self.written) - self.num_sure:
            self.next = self.next[:-1]  # the last one is read when a guess is asked for

    def joined(self) -> memoryview:
        if self._last is not None:
            return memoryview(self._last).cast("B")
        start = self.shift - 1 + len(self.written)
        return self._states.rows(start, start + len(self.next))

    def take(self, sampled: SampledToken | None, num_known: int) -> None:
        super().take(sampled, num_known)
        if sampled is not None and sampled.hidden is not None:
            self._last = array("f", sampled.hidden)
