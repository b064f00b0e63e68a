"""Drafts by the model's own first layers, and its final norm and head behind them.

Models that were trained for it (LayerSkip, arXiv:2404.16710) guess well so, and others hardly.
These layers write the keys and values of guesses into the sequence's own blocks, where a check of
the guesses writes the same again: nothing is kept twice, and no prompt is read for it.

How many layers are best is measured, unless somebody says: more of them guess better and take
longer. What was not tried for a while is believed to be as good as at first, so it is tried again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.drafting.drafter import MOST_DRAFTS_EACH, NO_OFFER, Offer, waiting_drafts
from zse.engine.drafting.likely_row import likely_row
from zse.engine.drafting.tally import Tally
from zse.models.decoder import forward_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from zse.engine.sequence import Sequence
    from zse.models.runner import ModelRunner

_FIRST_RATE = 0.6
_UNASKED_WEIGHS = 0.05
"""Guesses, at the first rate, that each step counts as for an exit that is not taken."""
_NEWEST_WEIGHS = 0.1
_PARTS = (8, 4, 2)
"""Parts of the layers that are tried."""
_COMPARED_DRAFTS = 3
"""For which exits are compared."""


class EarlyExitDrafter:
    """See ``Drafter``.

    Args:
        runner: The model.
        num_layers: Of it that guess; 0 measures.
        now: A clock in seconds.
    """

    def __init__(
        self,
        runner: ModelRunner,
        num_layers: int,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        total = len(runner.spec.layers)
        depths = [num_layers] if num_layers else sorted({max(1, total // one) for one in _PARTS})
        self._exits = [Exit(runner, depth, total) for depth in depths]
        self._exit = self._exits[0]
        """Where the newest guesses came out."""
        self._runner = runner
        self._now = now

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        for one in self._exits:
            one.tally.count(0, _UNASKED_WEIGHS, _UNASKED_WEIGHS * _FIRST_RATE)
        self._exit = max(self._exits, key=Exit.worth)
        return [self._offer(sequence) for sequence in sequences]

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        drafts = waiting_drafts(wanted)
        able = [i for i, (sequence, _) in enumerate(wanted) if not sequence.num_pending]
        for place in range(max((wanted[i][1] for i in able), default=0)):
            going_on = [i for i in able if wanted[i][1] > place]
            began = self._now()
            tokens = self._exit.tokens_after([(wanted[i][0], drafts[i]) for i in going_on])
            self._exit.note(self._now() - began)
            for index, token in zip(going_on, tokens, strict=True):
                drafts[index].append(token)
        return drafts

    def observe(self, _sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        """Count what stood; behind a wrong draft nothing is known."""
        self._exit.tally.count(0, min(num_checked, num_accepted + 1), num_accepted)

    def forget(self, _sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""

    def close(self) -> None:
        """Nothing is its own."""

    def _offer(self, sequence: Sequence) -> Offer:
        room = self._runner.max_position - sequence.num_tokens
        most = max(0, min(MOST_DRAFTS_EACH, room))
        if not most:
            return NO_OFFER
        return Offer(self._exit.tally.rate(0), most, self._exit.seconds_each)


class Exit:
    """So many layers of a model, of as many as it has."""

    def __init__(self, runner: ModelRunner, depth: int, total: int) -> None:
        self.depth = depth
        self._part = depth / total
        self._runner = runner
        spec = runner.spec
        self._forward = forward_of(replace(spec, layers=spec.layers[:depth]))
        self.tally = Tally((_FIRST_RATE,))
        self.seconds_each = 0.0

    def worth(self) -> float:
        """Return how many tokens come in the time of a step, as far as is known."""
        rate = self.tally.rate(0)
        tokens = sum(rate**place for place in range(_COMPARED_DRAFTS + 1))
        return tokens / (1 + _COMPARED_DRAFTS * self._part)

    def note(self, seconds: float) -> None:
        newest = _NEWEST_WEIGHS if self.seconds_each else 1.0
        self.seconds_each += newest * (seconds - self.seconds_each)

    def tokens_after(self, ends: Many[tuple[Sequence, list[int]]]) -> list[int]:
        """Return a guess for each sequence, behind the drafts that it has so far."""
        chunks, rows = [], []
        for sequence, drafts in ends:
            assert sequence.table is not None
            adapter = sequence.request.adapter
            chunks.append(
                SequenceChunk(
                    sequence.slot,
                    [drafts[-1] if drafts else sequence.token_ids[-1]],
                    len(sequence.token_ids) - 1 + len(drafts),
                    sequence.table.blocks,
                    "decode",
                    windows=sequence.table.windows,
                    adapter=None if adapter is None else adapter.handle,
                )
            )
            step = len(sequence.output_token_ids) + len(drafts)
            rows.append([likely_row(sequence).at_step(step, ())])
        answers = self._runner.guess(StepBatch(chunks=chunks, sampling=rows), self._forward)
        return [answer[0].token_id for answer in answers]
