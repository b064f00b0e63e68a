"""The running sequences in order of rank, and which of them may be preempted for another one."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.sequence import Sequence


class Running(list["Sequence"]):
    """Sequences with blocks, highest rank first. Changed by ``admit`` and ``leave`` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._priorities: dict[int, int] = {}
        """Running sequences of each priority."""

    def admit(self, sequence: Sequence) -> None:
        """Take a sequence in, where its rank says."""
        priority = sequence.request.priority
        self._priorities[priority] = self._priorities.get(priority, 0) + 1
        bisect.insort(self, sequence, key=_falling_rank)

    def leave(self, sequence: Sequence) -> None:
        """Take one out."""
        priority = sequence.request.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        self.remove(sequence)

    def has_lower_than(self, priority: int) -> bool:
        """Whether any sequence here is of a lower priority."""
        return bool(self._priorities) and min(self._priorities) < priority

    def victims_of(self, urgent: Sequence) -> list[Sequence]:
        """Return the sequences that may be preempted for one that waits, the lowest rank first."""
        victims: list[Sequence] = []
        for running in reversed(self):
            if running.rank > urgent.rank:
                break
            if running.request.priority < urgent.request.priority:
                victims.append(running)
        return victims


def _falling_rank(sequence: Sequence) -> tuple[int, int]:
    rank, arrival = sequence.rank
    return -rank, -arrival
