"""What callers hold of something that all of them share, and of which there is only so much.

Whoever holds the most leaves room for others: a caller may hold up to four times what is then still
free. One alone gets four fifths of all, two get four ninths each, and what nobody holds lets the
next one in. Callers without a key are one and the same, and hold all of it. From "Dynamic queue
length thresholds for shared-memory packet switches", Choudhury and Hahne, 1998.
"""

from __future__ import annotations

_TIMES_FREE = 4


def is_within_share(held: int, *, free: int) -> bool:
    """Whether a caller may hold so much where so much is free beside it; one piece always."""
    return held <= max(1, _TIMES_FREE * free)


class Shares:
    """Counts what each caller holds."""

    def __init__(self) -> None:
        self.total = 0
        """Of all callers."""
        self._held: dict[str, int] = {}

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def has_share(self, tenant: str, amount: int, *, most: int) -> bool:
        """Whether a caller leaves others room when it takes so much; alone it need not.

        Args:
            tenant: Whose it would be; empty where there are no keys.
            amount: What it would take.
            most: What all may hold.
        """
        if not tenant or not self.total:
            return True
        return is_within_share(self.held(tenant) + amount, free=most - self.total - amount)

    def take(self, tenant: str, amount: int) -> None:
        """Note that a caller takes so much; less than nothing gives it back."""
        self.total += amount
        held = self.held(tenant) + amount
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)
