"""A drafter that knows what will be answered, but for a token here and there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.engine.drafting.drafter import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class KnownAnswers:
    """See ``zse.engine.drafting.drafter.Drafter``.

    Args:
        answer_of: Returns all tokens that a sequence will be answered with.
        wrong_each: One of so many drafts is wrong.
    """

    def __init__(self, answer_of: Callable[[Any], list[int]], *, wrong_each: int = 5) -> None:
        self._answer_of = answer_of
        self._wrong_each = wrong_each
        self.forgotten: list[Any] = []
        self.observed: list[tuple[int, int]] = []

    def offers(self, sequences: Sequence[Any]) -> list[Offer]:
        return [Offer(0.9, 4 if len(one.token_ids) % 4 else 0) for one in sequences]

    def propose(self, wanted: Sequence[tuple[Any, int]]) -> list[list[int]]:
        return [self._guess(sequence, count) for sequence, count in wanted]

    def observe(self, sequence: Any, num_checked: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_checked
        self.observed.append((num_checked, num_accepted))

    def forget(self, sequence: Any) -> None:
        self.forgotten.append(sequence)

    def close(self) -> None:
        self.forgotten.clear()

    def _guess(self, sequence: Any, count: int) -> list[int]:
        first, wrong = len(sequence.output_token_ids), self._wrong_each
        want = self._answer_of(sequence)[first : first + count]
        return [1 if (first + i) % wrong == wrong - 1 else t for i, t in enumerate(want)]
