"""Fair shares: whose turn it is, by the work done for each tenant over its weight.

Each tenant has a meter that runs while it is worked for, the slower the larger its weight; of those
that wait, the one with the lowest meter goes first. A clock follows the meters of those that were
chosen: who comes to wait is put on it at least, since having asked for nothing earns nothing; who
is ahead of it stays there, since leaving the line must not pay.

Whoever waits gets its turn: a meter never falls, each turn moves the meter of who had it by one
unit over its weight or more, and nobody who comes is put above one that waits already. So, of
finitely many tenants of finite weights, each is chosen finitely often before another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_METERS = 4096
"""Tenants that are remembered: more than a server has keys."""


class FairShare:
    """The meters of tenants, and the clock beside them. The same calls give the same turns."""

    def __init__(self) -> None:
        self._meters: dict[str, float] = {}
        self._clock = 0.0

    def enter(self, tenant: str) -> None:
        """Note that a tenant comes to wait that did not."""
        if len(self._meters) >= MAX_METERS:
            self._forget()
        self._meters[tenant] = max(self.meter(tenant), self._clock)

    def meter(self, tenant: str) -> float:
        """Return the work done for a tenant over its weight, as far as it counts."""
        return self._meters.get(tenant, self._clock)

    def first(self, tenants: Iterable[str]) -> str:
        """Return whose turn it is of tenants that wait; of equals, the first named."""
        return min(tenants, key=self.meter)

    def take(self, tenant: str) -> None:
        """Note that a tenant's turn has come."""
        self._clock = max(self._clock, self.meter(tenant))

    def charge(self, tenant: str, amount: float, weight: float = 1.0) -> None:
        """Let a tenant's meter run for work that was done for it."""
        self._meters[tenant] = self.meter(tenant) + amount / weight

    def _forget(self) -> None:
        """Keep the half that is furthest ahead; the others come back as if they were new."""
        furthest = sorted(self._meters, key=self.meter, reverse=True)[: MAX_METERS // 2]
        self._meters = {tenant: self._meters[tenant] for tenant in furthest}
