"""Drafts by Medusa's heads (arXiv:2401.10774), each of which guesses one place further on.

All of them read the one state that the newest token was chosen from, so a chain of guesses takes
no small model's steps, and needs no blocks. A step leaves that state beside its tokens.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.drafting.drafter import MOST_DRAFTS_EACH, NO_OFFER, Offer, waiting_drafts
from zse.engine.drafting.likely_row import likely_row
from zse.engine.drafting.tally import Tally
from zse.models.medusa import forward_of_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from zse.backends.operations import Forward
    from zse.engine.sequence import Sequence
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec

_FIRST_RATE = 0.6
_UNASKED_WEIGHS = 0.05
"""Guesses, at the first rate, that each step counts as: heads that have not paid are tried again
after some hundred steps."""
_NEWEST_WEIGHS = 0.1
_ROWS_AT_ONCE = 8
"""Sequences of a pass: of so many the logits lie in memory at once, however large a vocabulary."""


class MedusaDrafter:
    """See ``Drafter``.

    Args:
        runner: Who computes the heads.
        spec: The heads, as ``zse.models.medusa.model_of`` makes a model of them.
        close: Gives them back.
        now: A clock in seconds.
    """

    def __init__(
        self,
        runner: ModelRunner,
        spec: ModelSpec,
        close: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        heads = range(min(len(spec.medusa), MOST_DRAFTS_EACH))
        self._passes = [forward_of_head(spec, index) for index in heads]
        self._close = close
        self._tally = Tally((_FIRST_RATE,))
        self._now = now
        self._seconds_each = 0.0

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        self._tally.count(0, _UNASKED_WEIGHS, _UNASKED_WEIGHS * _FIRST_RATE)
        return [self._offer(sequence) for sequence in sequences]

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        drafts = waiting_drafts(wanted)
        able = [i for i, (sequence, _) in enumerate(wanted) if not sequence.num_pending]
        states = {i: _newest_state(wanted[i][0]) for i in able}
        for place, forward in enumerate(self._passes):
            going_on = [i for i in able if wanted[i][1] > place]
            if not going_on:
                break
            began = self._now()
            asked = [(wanted[i][0], states[i]) for i in going_on]
            for first in range(0, len(asked), _ROWS_AT_ONCE):
                some = going_on[first : first + _ROWS_AT_ONCE]
                tokens = self._tokens_by(forward, place, asked[first : first + _ROWS_AT_ONCE])
                for index, token in zip(some, tokens, strict=True):
                    drafts[index].append(token)
            self._note(self._now() - began)
        return drafts

    def observe(self, _sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        """Count what stood; behind a wrong draft nothing is known."""
        self._tally.count(0, min(num_checked, num_accepted + 1), num_accepted)

    def forget(self, _sequence: Sequence) -> None:
        """Nothing is kept of a sequence but its states, which are its own."""

    def close(self) -> None:
        self._close()

    def _offer(self, sequence: Sequence) -> Offer:
        states, place = sequence.states, len(sequence.token_ids) - 2
        room = self._runner.max_position - sequence.num_tokens
        if states is None or place < 0 or room <= 0:
            return NO_OFFER
        states.drop(place)  # none before it will be read
        if not states.first <= place < states.end:
            return NO_OFFER
        return Offer(self._tally.rate(0), min(len(self._passes), room), self._seconds_each)

    def _note(self, seconds: float) -> None:
        newest = _NEWEST_WEIGHS if self._seconds_each else 1.0
        self._seconds_each += newest * (seconds - self._seconds_each)

    def _tokens_by(
        self, forward: Forward, place: int, asked: Many[tuple[Sequence, memoryview]]
    ) -> list[int]:
        """Return what one head guesses of some sequences, each at the place of its draft."""
        chunks, rows = [], []
        for sequence, state in asked:
            newest = sequence.token_ids[-1:]
            chunks.append(SequenceChunk(sequence.slot, newest, 0, (0,), "decode", joined=state))
            step = len(sequence.output_token_ids) + place
            rows.append([likely_row(sequence).at_step(step, ())])
        answers = self._runner.guess(StepBatch(chunks=chunks, sampling=rows), forward)
        return [answer[0].token_id for answer in answers]


def _newest_state(sequence: Sequence) -> memoryview:
    """Return the state that the newest token was chosen from."""
    assert sequence.states is not None
    place = len(sequence.token_ids) - 2
    return sequence.states.rows(place, place + 1)
