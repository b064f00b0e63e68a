"""Models in object storage: fetched once into the cache, named by the bytes they hold."""

from __future__ import annotations

import fcntl
import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zse.store import copy_object, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def is_remote(model: str) -> bool:
    """Whether a model's name is the address of an object."""
    return model.startswith("s3://")


def fetch_model(url: str, cache_dir: Path) -> Path:
    """Return the local copy of a .zse file in object storage, fetching it when it is not there.

    An object that was replaced since has another version, and so another local name. Processes
    that ask for one object at the same time fetch it once: the others wait.

    Raises:
        NotFoundError: There is no such object.
        StoreError: The storage failed, or the bytes are not those that were stored.
        DiskFullError: The cache has no room.
    """
    store = open_store(url)
    # A digest recorded by the upload names the bytes themselves, whoever stored them again.
    identity = f"{url}\n{store.size()}\n{store.recorded_sha256() or store.version()}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    path = cache_dir / "models" / f"{name}.zse"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if not path.is_file():
            # The store that gave the name: it refuses the bytes of a newer object.
            copy_object(store, open_store(path).open_writer(), None)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the kernel drops it when a process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
