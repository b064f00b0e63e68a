"""A read-through cache of remote objects: each fetched once, none removed while it is in use.

An entry is a file in ``models/`` of the cache folder, named by what it holds, with a small JSON
file beside it. The JSON file is there first, so a file that has none is not an entry. Its time is
when the entry was last asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from zse.errors import DiskFullError
from zse.records import record
from zse.store.copying import resume_copy
from zse.store.local import translated_os_error
from zse.store.locks import hold, is_used, locked, locked_if_free, remove_unused
from zse.store.partial import PartialWriter, identity_of, remove_partials
from zse.store.transfer import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.store.base import Progress, Store
    from zse.store.location import Location

GIBIBYTE = 1 << 30
FOLDER = "models"
_NAME_DIGITS = 32
_SPARE_BYTES = 64 << 20  # what stays free on the disk for others
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]+\.part")
_OWN_SUFFIXES = frozenset({".json", ".lock", ".new"})
_held: dict[Path, int] = {}
_held_lock = threading.Lock()


@record
class CacheEntry:
    """One object in the cache."""

    path: Path
    url: str
    """Where it came from, without a query."""
    size_bytes: int
    used_seconds: float
    """When it was last asked for, since 1970."""
    is_whole: bool
    """Whether it is an entry, and not a download that stopped."""


class Cache:
    """The fetched objects of one cache folder, shared with other processes.

    Args:
        folder: ``Settings.cache_dir``.
        limit_bytes: Most that the entries may take; 0 means what the disk has.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = 0) -> None:
        self.folder = folder / FOLDER
        """Where the entries are."""
        self._limit_bytes = limit_bytes

    def fetch(self, url: str | Location, progress: Progress | None = None) -> Path:
        """Return the local copy of an object, fetching it when it is not there.

        The copy stays until this process ends: nothing evicts it meanwhile. An object that was
        replaced since has another version, and so another local name. Processes that ask for one
        object at the same time fetch it once: the others wait.

        Raises:
            NotFoundError: There is no such object.
            StoreError: The storage failed, the bytes are not those that were stored, or the cache
                folder cannot be used.
            DiskFullError: The object does not fit, whatever is evicted.
        """
        store = open_store(url)
        identity = identity_of(store)
        path = self.folder / (identity[:_NAME_DIGITS] + (_suffix(store) or ".bin"))
        try:
            if not self._take(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                with locked(path.with_suffix(".lock")):
                    while not self._take(path):
                        self._fill(store, path, identity, progress)
        except OSError as error:
            raise translated_os_error(error, self.folder, "use") from error
        return path

    def entries(self) -> list[CacheEntry]:
        """Return the entries and the downloads that stopped, those used longest ago first."""
        found = []
        for path in self._files():
            record = _whole_path(path).with_suffix(".json")
            if path.suffix in _OWN_SUFFIXES or not record.is_file():
                continue
            with contextlib.suppress(OSError):
                facts = path.stat()
                is_whole = path == _whole_path(path)
                used = record.stat().st_mtime if is_whole else facts.st_mtime
                found.append(
                    CacheEntry(
                        path=path,
                        url=_recorded_url(record),
                        size_bytes=facts.st_size,
                        used_seconds=used,
                        is_whole=is_whole,
                    )
                )
        return sorted(found, key=lambda entry: (entry.used_seconds, entry.path.name))

    def is_in_use(self, entry: CacheEntry) -> bool:
        """Whether a process holds an entry or has it open."""
        try:
            return is_used(entry.path)
        except OSError:
            return False

    def remove(self, entry: CacheEntry) -> bool:
        """Remove an entry unless it is in use or being fetched; tell whether it went."""
        whole = _whole_path(entry.path)
        with locked_if_free(whole.with_suffix(".lock")) as is_free:
            if not is_free:
                return False
            with contextlib.suppress(FileNotFoundError):
                if not remove_unused(entry.path):
                    return False
            remove_partials(whole)
            if not whole.exists():
                whole.with_suffix(".json").unlink(missing_ok=True)
        return True

    def shrink(
        self, limit_bytes: int, *, keep: Path | None = None, used_before: float | None = None
    ) -> list[CacheEntry]:
        """Remove entries, those used longest ago first, until the rest takes ``limit_bytes``.

        Args:
            limit_bytes: Most that may stay.
            keep: A file whose partial download is not to be removed.
            used_before: Seconds since 1970; what was used since stays.

        Returns:
            What was removed.
        """
        entries = [entry for entry in self.entries() if not _is_partial_of(entry, keep)]
        total_bytes = sum(entry.size_bytes for entry in entries)
        removed = []
        for entry in entries:
            if total_bytes <= limit_bytes or entry.used_seconds > (used_before or math.inf):
                break
            if self.remove(entry):
                total_bytes -= entry.size_bytes
                removed.append(entry)
        return removed

    def _take(self, path: Path) -> bool:
        """Mark an entry as used and hold it until this process ends; tell whether it is there."""
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
            os.utime(path.with_suffix(".json"))
        return True

    def _fill(self, store: Store, path: Path, identity: str, progress: Progress | None) -> None:
        self._make_room(store, path)
        record = {"url": str(store.location), "identity": identity, "fetched": int(time.time())}
        temporary = path.with_suffix(".json.new")
        temporary.write_text(json.dumps(record, sort_keys=True))
        temporary.replace(path.with_suffix(".json"))
        # The store that gave the name: it refuses the bytes of a newer object.
        resume_copy(store, PartialWriter(path, identity), progress)

    def _make_room(self, store: Store, path: Path) -> None:
        size_bytes = store.size()
        if self._limit_bytes:
            if size_bytes > self._limit_bytes:
                raise DiskFullError(
                    f"{store.location} has {size_bytes} bytes; the cache may hold "
                    f"{self._limit_bytes}",
                    hint="Raise ZSE_CACHE_GIB.",
                )
            self.shrink(self._limit_bytes - size_bytes, keep=path)
        held_bytes = sum(e.size_bytes for e in self.entries() if _is_partial_of(e, path))
        lacking = size_bytes - held_bytes + _SPARE_BYTES - shutil.disk_usage(self.folder).free
        if lacking <= 0:
            return
        taken = sum(e.size_bytes for e in self.entries() if not _is_partial_of(e, path))
        self.shrink(max(taken - lacking, 0), keep=path)
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes + held_bytes < size_bytes:
            raise DiskFullError(
                f"{store.location} has {size_bytes} bytes; the disk of {self.folder} has "
                f"{free_bytes} free, and nothing in the cache can be removed",
                hint="Free space, or set ZSE_CACHE_DIR to a larger disk.",
            )

    def _files(self) -> Iterator[Path]:
        try:
            yield from sorted(self.folder.iterdir())
        except FileNotFoundError:
            return


def _suffix(store: Store) -> str:
    suffix = "." + store.location.name.rpartition(".")[2]
    return suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,12}", suffix) else ""


def _is_partial_of(entry: CacheEntry, path: Path | None) -> bool:
    return not entry.is_whole and _whole_path(entry.path) == path


def _whole_path(path: Path) -> Path:
    """Return the entry that a file of the cache is, or is to become."""
    match = _PARTIAL.fullmatch(path.name)
    return path.with_name(match[1]) if match else path


def _recorded_url(record: Path) -> str:
    try:
        return str(json.loads(record.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def entry_json(entry: CacheEntry) -> dict[str, object]:
    """Return an entry as JSON values."""
    return {**asdict(entry), "path": str(entry.path)}
