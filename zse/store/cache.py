"""The models in the cache: each fetched or made once, none removed while it is in use."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from typing import TYPE_CHECKING

from zse.errors import DiskFullError
from zse.store.cache_items import find_items, shrink
from zse.store.cache_kinds import MODELS
from zse.store.cache_models import find_models, lock_of, record_of
from zse.store.cache_use import ROOM_HINT, make_cache_folder, usable
from zse.store.copying import copy_object
from zse.store.locks import hold, locked
from zse.store.partial import PartialWriter, identity_of
from zse.store.transfer import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.settings import Settings
    from zse.store.base import Progress, Store
    from zse.store.location import Location

_NAME_DIGITS = 32
_SPARE_BYTES = 64 << 20  # what stays free on the disk for others
_SUFFIX = re.compile(r"\.(?!json|lock|new|part|partial)[A-Za-z0-9]{1,12}")
_held: dict[Path, int] = {}
_held_lock = threading.Lock()


class Cache:
    """The models of one cache folder, shared with other processes.

    Args:
        settings: Where it is, the most that everything in it may take, and how what it lacks is
            fetched.
    """

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.cache_dir / MODELS.area
        """Where the models are."""
        self._cache_dir = settings.cache_dir
        self._settings = settings

    def fetch(
        self,
        url: str | Location,
        progress: Progress | None = None,
        *,
        copy: Callable[[Path], object] | None = None,
    ) -> Path:
        """Return the local copy of an object, fetching it when it is not there.

        The copy stays until this process ends: nothing evicts it meanwhile. An object that was
        replaced since has another version, and so another local name. Processes that ask for one
        object at the same time fetch it once: the others wait.

        Args:
            url: The object.
            progress: Told how far it is.
            copy: Writes the object's bytes to a path, whole or not at all, if not its store does.

        Raises:
            NotFoundError: There is no such object.
            StoreError: The storage failed, the bytes are not those that were stored, or the cache
                folder cannot be used.
            DiskFullError: The object does not fit, whatever is evicted.
        """
        store = open_store(url, self._settings)
        identity = identity_of(store)

        def write(path: Path) -> None:
            self._make_room(store, path)
            self._note(path, str(store.location))
            if copy is not None:
                copy(path)
                return
            # The store that gave the name: it refuses the bytes of a newer object.
            copy_object(store, PartialWriter(path, identity), progress)

        return self._obtain(_name_of(store), write)

    def adopt(self, url: str | Location, complete: Callable[[], Path]) -> Path:
        """Return the local copy of an object whose bytes lie in a file of ``folder`` already.

        The file gets the copy's name, unless the copy is there: then it is left as it is. What
        else is said of ``fetch`` holds.

        Args:
            url: The object.
            complete: Called where there is no copy; returns the file, whole and checked, which
                its owner removes if it was not taken.

        Raises:
            NotFoundError: There is no such object.
            StoreError: The storage failed, or the cache folder cannot be used.
        """
        store = open_store(url, self._settings)

        def write(path: Path) -> None:
            complete().replace(path)

        return self._obtain_and_shrink(_name_of(store), str(store.location), write)

    def make(self, name: str, origin: str, write: Callable[[Path], object]) -> Path:
        """Return a model that this machine makes, making it when it is not there.

        As with ``fetch`` it is made once and stays until this process ends.

        Args:
            name: ``WORDS-SCHEME-DIGEST.zse``, which says everything that decides the bytes.
            origin: Where it comes from, for those who list the cache.
            write: Makes the file, whole or not at all.

        Raises:
            StoreError: The cache folder cannot be used.
            ZSEError: What ``write`` raises.
        """
        return self._obtain_and_shrink(name, origin, write)

    def _obtain_and_shrink(self, name: str, origin: str, write: Callable[[Path], object]) -> Path:
        """Return a model, written if it is not there; others make room for it afterwards."""

        def write_and_note(path: Path) -> None:
            self._note(path, origin)
            write(path)

        path = self._obtain(name, write_and_note)
        if self._settings.cache_bytes:
            shrink(self._cache_dir, self._settings.cache_bytes, keep=path)
        return path

    def _obtain(self, name: str, write: Callable[[Path], object]) -> Path:
        path = self.folder / name
        with usable(self._cache_dir):
            if not self._take(path):
                make_cache_folder(self._cache_dir)
                with locked(lock_of(path)):
                    while not self._take(path):
                        write(path)
        return path

    def _take(self, path: Path) -> bool:
        """Mark a model as used and hold it until this process ends; tell whether it is there."""
        with _held_lock:
            if path not in _held:
                descriptor = hold(path)
                if descriptor is None:
                    return False
                _held[path] = descriptor
            elif not path.exists():
                os.close(_held.pop(path))  # removed by hand
                return False
        with contextlib.suppress(OSError):
            os.utime(record_of(path))
        return True

    def _note(self, path: Path, origin: str) -> None:
        record = record_of(path)
        temporary = record.with_name(f"{record.name}.new")
        temporary.write_text(json.dumps({"url": origin, "made": int(time.time())}, sort_keys=True))
        temporary.replace(record)

    def _make_room(self, store: Store, path: Path) -> None:
        size_bytes, limit_bytes = store.size(), self._settings.cache_bytes
        models = find_models(self.folder)
        held_bytes = sum(found.size_bytes for found in models if found.path.stem == path.stem)
        if limit_bytes:
            if size_bytes > limit_bytes:
                raise DiskFullError(
                    f"{store.location} has {size_bytes} bytes; the cache may hold {limit_bytes}",
                    hint="Raise ZSE_CACHE_GIB.",
                )
            shrink(self._cache_dir, limit_bytes - size_bytes + held_bytes, keep=path)
        lacking = size_bytes - held_bytes + _SPARE_BYTES - shutil.disk_usage(self.folder).free
        if lacking <= 0:
            return
        taken = sum(item.size_bytes for item in find_items(self._cache_dir))
        shrink(self._cache_dir, max(taken - lacking, 0), keep=path)
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes + held_bytes < size_bytes:
            raise DiskFullError(
                f"{store.location} has {size_bytes} bytes; the disk of {self.folder} has "
                f"{free_bytes} free, and nothing in the cache can be removed",
                hint=ROOM_HINT,
            )


def _name_of(store: Store) -> str:
    """Return the local name of an object at its present version."""
    return identity_of(store)[:_NAME_DIGITS] + _suffix(store)


def _suffix(store: Store) -> str:
    suffix = "." + store.location.name.rpartition(".")[2]
    return suffix if _SUFFIX.fullmatch(suffix) else ".bin"
