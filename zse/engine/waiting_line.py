"""The line of sequences that wait for the engine: classes of priority, fair shares within each.

Which class goes is decided by the rank of whoever waits longest in it, so that waiting lifts a
class as a whole. Who of it goes is decided by fair shares between the tenants, in tokens that were
computed for them; each tenant's own sequences go in the order in which they came.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from zse.engine.fairness import FairShare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.engine.sequence import Sequence


class WaitingLine:
    """Sequences without blocks."""

    def __init__(self) -> None:
        self._classes: dict[int, _PriorityClass] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for each in self._classes.values():
            for sequences in each.by_tenant.values():
                yield from sequences

    @property
    def top_priority(self) -> int:
        """Highest priority of any sequence here; there must be one."""
        return max(self._classes)

    @property
    def is_contested(self) -> bool:
        """Whether tenants of one class wait beside each other, so that shares decide."""
        return any(len(each.by_tenant) > 1 for each in self._classes.values())

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the line, where its arrival says."""
        request = sequence.request
        if request.priority not in self._classes:
            self._classes[request.priority] = _PriorityClass()
        self._classes[request.priority].add(sequence)
        self._num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the line, wherever it stands."""
        priority = sequence.request.priority
        self._classes[priority].remove(sequence)
        self._num_waiting -= 1
        if not self._classes[priority].by_tenant:
            del self._classes[priority]

    def first(self) -> Sequence | None:
        """Return whose turn it is; None when all wait for the prompts of running leaders."""
        classes = list(self._classes.values())
        if len(classes) > 1:
            classes.sort(key=_PriorityClass.rank, reverse=True)
        for each in classes:
            if (sequence := each.first()) is not None:
                return sequence
        return None

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence whose turn has come."""
        request = sequence.request
        self._classes[request.priority].share.take(request.tenant)
        self.remove(sequence)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens computed for a sequence, where others of its class wait."""
        request = sequence.request
        if (each := self._classes.get(request.priority)) is not None:
            each.share.charge(request.tenant, num_tokens, request.weight)


class _PriorityClass:
    """Waiting sequences of one priority. It goes with the last of them, and so do its meters."""

    def __init__(self) -> None:
        self.share = FairShare()
        self.by_tenant: dict[str, list[Sequence]] = {}
        """Sequences of each tenant, first arrival first."""

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self.by_tenant:
            self.by_tenant[tenant] = []
            self.share.enter(tenant)
        bisect.insort(self.by_tenant[tenant], sequence, key=_arrival_of)

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        sequences = self.by_tenant[tenant]
        del sequences[bisect.bisect_left(sequences, _arrival_of(sequence), key=_arrival_of)]
        if not sequences:
            del self.by_tenant[tenant]

    def rank(self) -> tuple[int, int]:
        """Rank of who came first."""
        return max(sequences[0].rank for sequences in self.by_tenant.values())

    def first(self) -> Sequence | None:
        ready: dict[str, Sequence] = {}
        for tenant, sequences in self.by_tenant.items():
            sequence = next(filter(_can_begin, sequences), None)
            if sequence is not None:
                ready[tenant] = sequence
        if len(ready) > 1:
            return ready[self.share.first(ready)]
        return next(iter(ready.values()), None)


def _arrival_of(sequence: Sequence) -> int:
    return -sequence.rank[1]


def _can_begin(sequence: Sequence) -> bool:
    """Whether a sequence need not wait for its leader's prompt."""
    leader = sequence.leader
    return leader is None or leader.table is None or leader.is_prompt_computed
