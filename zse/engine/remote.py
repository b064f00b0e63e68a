"""Models in object storage: fetched once into the cache, named by the bytes they hold."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from zse.store import fetch, open_store

if TYPE_CHECKING:
    from pathlib import Path


def is_remote(model: str) -> bool:
    """Whether a model's name is the address of an object."""
    return model.startswith("s3://")


def fetch_model(url: str, cache_dir: Path) -> Path:
    """Return the local copy of a .zse file in object storage, fetching it when it is not there.

    An object that was replaced since has another digest or size, and so another local name.

    Raises:
        NotFoundError: There is no such object.
        StoreError: The storage failed, or the bytes are not those that were stored.
        DiskFullError: The cache has no room.
    """
    store = open_store(url)
    identity = f"{url}\n{store.size()}\n{store.recorded_sha256() or ''}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    path = cache_dir / "models" / f"{name}.zse"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch(store.location, path)
    return path
