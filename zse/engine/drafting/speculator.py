"""Speculation of one engine: before each step, which sequences have drafts checked, and how many.

    tokens so far -> Drafter.offers -> lengths_that_pay -> Drafter.propose -> Sequence.drafts
                           ^                 ^                                      |
                           +-- which stood --+-- what the step took ----------------+

Nothing here changes an answer: a step answers a draft with the token that the model chooses there,
with its own seed and place, and the first one that differs ends the run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.engine.drafting.costs import StepCosts, lengths_that_pay
from zse.engine.stats import SpeculationCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many
    from typing import TypeAlias

    from zse.backends.types import SampledToken
    from zse.engine.chunks import ScheduledChunk
    from zse.engine.drafting.drafter import Drafter
    from zse.engine.sequence import Sequence

    Takes: TypeAlias = Callable[[Sequence, int], bool]


def _has_room(_sequence: Sequence, _num_drafts: int) -> bool:
    return True


class Speculator:
    """Sets the drafts of sequences between two steps.

    Args:
        drafter: Who guesses.
        now: A clock in seconds.
        writes_ahead: Whether drafts are written into the sequences' own blocks.
    """

    def __init__(
        self,
        drafter: Drafter,
        now: Callable[[], float] = time.perf_counter,
        *,
        writes_ahead: bool = False,
    ) -> None:
        self._drafter = drafter
        self._writes_ahead = writes_ahead
        self._costs = StepCosts()
        self._now = now
        self._began = 0.0
        self._checks = self._draft_tokens = self._accepted_tokens = 0

    def prepare(self, running: Many[Sequence], takes: Takes = _has_room) -> None:
        """Give the running sequences the drafts that pay; called before a step is planned.

        ``takes`` gives a sequence blocks for so many drafts, or says that it cannot: it is asked
        where drafts are written there.

        Of a sequence whose newest token is pending, the first draft is a guess of that token: those
        behind it let the sequence wait for its token, and be asked again.
        """
        self._set_drafts(running, takes)
        self._began = self._now()  # what guesses cost is the drafter's own to tell

    def stepped(self, finished: Many[tuple[ScheduledChunk, Many[SampledToken]]]) -> None:
        """Note what came of the step since ``prepare``, before its tokens are appended."""
        seconds = self._now() - self._began
        num_rows = num_drafts = 0
        has_prompt = False
        for chunk, answer in finished:
            num_rows += chunk.num_tokens
            has_prompt = has_prompt or chunk.kind == "prefill"
            if chunk.kind != "verify":
                continue
            num_checked, num_accepted = chunk.num_tokens - 1, max(0, len(answer) - 1)
            num_drafts += num_checked
            self._checks += 1
            self._accepted_tokens += num_accepted
            self._drafter.observe(chunk.sequence, num_checked, num_accepted)
        self._draft_tokens += num_drafts
        if finished and not has_prompt:
            self._costs.note(num_rows, num_drafts, seconds)

    def forget(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended."""
        self._drafter.forget(sequence)

    def counts(self) -> SpeculationCounts:
        return SpeculationCounts(
            checks=self._checks,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted_tokens,
        )

    def close(self) -> None:
        self._drafter.close()

    def _set_drafts(self, running: Many[Sequence], takes: Takes) -> None:
        decoding = [s for s in running if s.num_remaining == 1 and s.num_pending <= 1]
        able = [s for s in decoding if not s.num_void and s.num_left > 1]
        for sequence in running:
            sequence.drafts = ()
        offers = self._drafter.offers(able)
        if not any(offer.most for offer in offers):
            return
        offers = [
            offer._replace(most=min(offer.most, sequence.num_left - 1))
            for offer, sequence in zip(offers, able, strict=True)
        ]
        lengths = lengths_that_pay(offers, len(decoding), self._costs)
        wanted = [(s, length) for s, length in zip(able, lengths, strict=True) if length]
        if self._writes_ahead:
            wanted = [(sequence, length) for sequence, length in wanted if takes(sequence, length)]
        if not wanted:
            return
        for (sequence, _), drafts in zip(wanted, self._drafter.propose(wanted), strict=True):
            sequence.drafts = drafts[sequence.num_pending :]
