"""The things in the cache folder: found by their kinds, measured, removed when nobody uses them.

What was used longest ago goes first when all of it is more than the limit.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import PurePath
from typing import TYPE_CHECKING

from zse.store.cache_kinds import KINDS, MODELS, CacheItem, Kind
from zse.store.cache_models import find_models, is_model_used, remove_left_notes, remove_model
from zse.store.cache_use import area_lock, is_tagged, usable, using
from zse.store.locks import is_locked, is_used, locked_if_free, remove_unused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from zse.settings import Settings


def find_items(cache_dir: Path, kinds: Iterable[Kind] = KINDS) -> list[CacheItem]:
    """Return what the cache folder holds, what was used longest ago first.

    Raises:
        StoreError: The cache folder is none, or cannot be read.
    """
    found: list[CacheItem] = []
    with usable(cache_dir), contextlib.suppress(FileNotFoundError):
        next(cache_dir.iterdir(), None)
    for kind in kinds:
        if kind is MODELS:
            found += find_models(cache_dir / kind.area)
            continue
        for path in _matches(cache_dir, kind):
            size, used = _measure(path)
            found.append(
                CacheItem(
                    kind=kind.name, name=path.name, path=path, size_bytes=size, used_seconds=used
                )
            )
    return sorted(found, key=lambda item: (item.used_seconds, item.path))


def is_item_used(cache_dir: Path, item: CacheItem) -> bool:
    """Whether a process has a thing open, or uses others of its folder."""
    if item.kind == MODELS.name:
        return is_model_used(item.path)
    if is_locked(area_lock(cache_dir, _kind_of(item).area)):
        return True
    with contextlib.suppress(OSError):
        return item.path.is_file() and is_used(item.path)
    return False


def remove_item(cache_dir: Path, item: CacheItem) -> bool:
    """Remove a thing unless it is used; tell whether it went.

    Raises:
        OSError: It cannot be removed.
    """
    if item.kind == MODELS.name:
        is_removed = remove_model(item.path)
        _remove_empty_folders(item.path.parent, cache_dir)
        return is_removed
    with locked_if_free(area_lock(cache_dir, _kind_of(item).area)) as is_removed:
        is_removed = is_removed and _remove(item.path)
        if is_removed:
            _remove_empty_folders(item.path.parent, cache_dir)
    return is_removed


def remove_idle_locks(cache_dir: Path) -> None:
    """Remove the small files that say who makes or uses what, where nobody does.

    Raises:
        OSError: One cannot be removed.
    """
    remove_left_notes(cache_dir / MODELS.area)
    _remove_empty_folders(cache_dir / MODELS.area, cache_dir)
    for area in {kind.area for kind in KINDS}:
        lock = area_lock(cache_dir, area)
        if lock.exists():
            with locked_if_free(lock):
                pass  # which removes it


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
        if item.path == keep or _kind_of(item).is_work:
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


def _kind_of(item: CacheItem) -> Kind:
    return next(kind for kind in KINDS if kind.name == item.kind)


def _matches(cache_dir: Path, kind: Kind) -> Iterator[Path]:
    folders = {cache_dir / PurePath(pattern).parent for pattern in kind.items}
    for pattern in kind.items:
        yield from (path for path in cache_dir.glob(pattern) if path not in folders)


def _remove(path: Path) -> bool:
    """Remove a folder, or a file that nobody has open; tell whether it went."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return True
    try:
        return remove_unused(path)
    except (FileNotFoundError, PermissionError):  # gone, or read-only: its folder decides
        path.unlink(missing_ok=True)
        return True


def _remove_empty_folders(folder: Path, cache_dir: Path) -> None:
    """Remove a folder and those above it in the cache, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != cache_dir:
            folder.rmdir()
            folder = folder.parent


def _measure(path: Path) -> tuple[int, float]:
    """Return the size in bytes of a file or of all files in a folder, and their last use."""
    size_bytes, used_seconds = 0, 0.0
    pending = [path]
    while pending:
        current = pending.pop()
        with contextlib.suppress(OSError):
            facts = current.lstat()
            if not current.is_symlink() and current.is_dir():
                pending += current.iterdir()
                used_seconds = max(used_seconds, facts.st_mtime)
                continue
            size_bytes += facts.st_size
            used_seconds = max(used_seconds, facts.st_mtime, facts.st_atime)
    return size_bytes, used_seconds
