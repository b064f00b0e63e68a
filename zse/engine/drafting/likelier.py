"""Two drafters as one: a free one, and one that takes time and is asked where it knows better."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from zse.engine.drafting.drafter import Drafter, Offer
    from zse.engine.sequence import Sequence

_MUCH_LIKELIER = 1.2
"""Times the chance of a free draft from which on one that takes time is worth it."""


class LikelierDrafter:
    """See ``Drafter``: for each sequence the drafts of one of two, anew in each step."""

    def __init__(self, free: Drafter, slow: Drafter) -> None:
        self._free = free
        self._slow = slow
        self._asked_slow: set[Sequence] = set()
        """Sequences whose newest offer is the slow one's."""

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        both = zip(
            sequences, self._free.offers(sequences), self._slow.offers(sequences), strict=True
        )
        self._asked_slow.clear()
        offers = []
        for sequence, free, slow in both:
            is_slow = bool(slow.most) and (
                not free.most or slow.chance > _MUCH_LIKELIER * free.chance
            )
            if is_slow:
                self._asked_slow.add(sequence)
            offers.append(slow if is_slow else free)
        return offers

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        slow = [one for one in wanted if one[0] in self._asked_slow]
        free = [one for one in wanted if one[0] not in self._asked_slow]
        found: dict[Sequence, list[int]] = {}
        for drafter, asked in ((self._slow, slow), (self._free, free)):
            if asked:
                names = [sequence for sequence, _ in asked]
                found.update(zip(names, drafter.propose(asked), strict=True))
        return [found[sequence] for sequence, _ in wanted]

    def observe(self, sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        of = self._slow if sequence in self._asked_slow else self._free
        of.observe(sequence, num_checked, num_accepted)

    def forget(self, sequence: Sequence) -> None:
        self._free.forget(sequence)
        self._slow.forget(sequence)
        self._asked_slow.discard(sequence)

    def close(self) -> None:
        self._free.close()
        self._slow.close()
