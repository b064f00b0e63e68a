"""The seam of speculation: what guesses the tokens that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from zse.engine.sequence import Sequence

MOST_DRAFTS_EACH = 10
"""Drafts of one sequence in one step at most: longer runs of right ones hardly ever come."""


class Offer(NamedTuple):
    """What a drafter could guess for a sequence."""

    chance: float
    """Of each draft to stand if those before it do, as far as is known."""
    most: int
    """Drafts that it could make; 0 where it has no guess."""
    seconds_each: float = 0.0
    """What it costs to make one draft more for every sequence, as measured."""


NO_OFFER = Offer(0.0, 0)
_UNKNOWN = 0


def waiting_drafts(wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
    """Return drafts to begin with of who guesses from known tokens alone: none, as a rule.

    Of a sequence whose newest token only the device knows, some that no step checks: it waits for
    that token, and is asked again.
    """
    return [[_UNKNOWN] * (2 * sequence.num_pending) for sequence, _ in wanted]


class Drafter(Protocol):
    """Guesses tokens. Whether they are right changes how fast an answer comes, never the answer."""

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        """Say what could be guessed for each sequence; all its tokens but a pending one are known.

        A sequence that is told of for the first time is begun with, and goes on until ``forget``.
        """

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        """Return drafts of each sequence, as many as are asked for or fewer."""

    def observe(self, sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        """Take note of how many drafts stood, of those that a step has checked."""

    def forget(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended, whether it was told of or not."""

    def close(self) -> None:
        """Give back what it holds."""
