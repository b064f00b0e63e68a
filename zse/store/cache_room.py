"""Keeping the cache folder within its limit: what was used longest ago goes first."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zse.store.cache_items import find_items, kind_named, remove_item
from zse.store.cache_use import is_tagged, using

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.settings import Settings
    from zse.store.cache_kinds import CacheItem


def shrink(cache_dir: Path, most_bytes: int, *, keep: Path | None = None) -> list[CacheItem]:
    """Remove things, those used longest ago first, until the rest takes ``most_bytes``.

    What is in use stays, and what is the user's own work. In a folder that zse did not begin
    everything stays.

    Args:
        keep: A model that stays, finished or not.

    Returns:
        What was removed.
    """
    items = find_items(cache_dir) if is_tagged(cache_dir) else []
    total_bytes = sum(item.size_bytes for item in items)
    removed = []
    for item in items:
        if total_bytes <= most_bytes:
            break
        if item.path == keep or kind_named(item.kind).is_work:
            continue
        with contextlib.suppress(OSError):  # another user's, or gone
            if remove_item(cache_dir, item):
                total_bytes -= item.size_bytes
                removed.append(item)
    return removed


@contextlib.contextmanager
def filling(settings: Settings, area: str) -> Iterator[Path]:
    """As ``using``; afterwards the whole cache is brought below its limit.

    Raises:
        StoreError: The folder cannot be used.
        DiskFullError: Its disk is full.
    """
    with using(settings.cache_dir, area) as folder:
        yield folder
    if settings.cache_bytes:
        shrink(settings.cache_dir, settings.cache_bytes)
