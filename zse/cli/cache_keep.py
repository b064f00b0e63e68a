"""Reads the value of ``zse cache clean --keep``: a kind, a name, a time or a size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.records import record
from zse.store.cache_kinds import KINDS
from zse.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.store.cache_kinds import CacheItem

_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[kmgt]i?b", re.IGNORECASE)


@record
class Keep:
    """One rule; the fields that it does not use are empty."""

    kind: str = ""
    name: str = ""
    """A part of the name, the address or the file's name."""
    used_since: float | None = None
    """Seconds since 1970."""
    most_bytes: int = 0
    """The things used last, up to this size."""

    def covers(self, item: CacheItem) -> bool:
        """Whether an item is kept for what it is; sizes are for ``not_kept``."""
        if self.kind:
            return item.kind == self.kind
        if self.name:
            return self.name in item.name or self.name in item.path.name
        return self.used_since is not None and item.used_seconds >= self.used_since


def parse_keep(text: str, *, now: float) -> Keep:
    """Read one rule.

    Args:
        text: ``models``, ``qwen``, ``7d`` or ``20GB``.
        now: Seconds since 1970.

    Raises:
        UsageError: The text is empty.
    """
    if not text.strip():
        raise UsageError("--keep was given nothing", hint="Give a kind, a name, 7d or 20GB.")
    if text in {kind.name for kind in KINDS}:
        return Keep(kind=text)
    if _TIME.fullmatch(text):
        return Keep(used_since=now - parse_seconds(text))
    if _SIZE.fullmatch(text):
        return Keep(most_bytes=parse_size(text))
    return Keep(name=text)


def parse_seconds(text: str) -> float:
    """Return a time in seconds.

    Raises:
        UsageError: The text is no time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a time", hint="Write 30d, 12h or 90m.")
    return float(match[1]) * _SECONDS[match[2]]


def not_kept(items: Sequence[CacheItem], rules: Sequence[Keep]) -> list[CacheItem]:
    """Return the items, used longest ago first, that no rule keeps, in that order."""
    left_bytes = max((rule.most_bytes for rule in rules), default=0)
    others: list[CacheItem] = []
    for item in reversed(items):
        is_kept = any(rule.covers(item) for rule in rules)
        if not is_kept and left_bytes:
            left_bytes -= item.size_bytes
            is_kept = left_bytes >= 0
            left_bytes = max(left_bytes, 0)
        if not is_kept:
            others.append(item)
    return others[::-1]
