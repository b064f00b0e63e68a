"""Models behind an address: fetched once into the cache, named by the bytes they hold."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.store import Location, Progress


def fetch_model(url: str | Location, cache_dir: Path, progress: Progress | None = None) -> Path:
    """Return the local copy of a .zse file in object storage, fetching it when it is not there.

    An object that was replaced since has another version, and so another local name. Processes
    that ask for one object at the same time fetch it once: the others wait. The copy stays until
    this process ends.

    Raises:
        NotFoundError: There is no such object.
        StoreError: The storage failed, or the bytes are not those that were stored.
        DiskFullError: The cache has no room.
    """
    # By name: a file of this machine is served without the modules that speak HTTP.
    cache = importlib.import_module("zse.store.cache")
    return Path(cache.open_cache(cache_dir).fetch(url, progress))
