"""Whole objects between places: open one, fetch one, put one, read several ranges of one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from zse.store.copying import copy_object
from zse.store.local import LocalStore
from zse.store.location import Location, parse_location
from zse.store.s3 import READERS, S3Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.store.base import Progress, Store, Transfer


def open_store(url: str | Path | Location) -> Store:
    """Return the store for a path or an ``s3://bucket/key``; nothing is read yet.

    Raises:
        UsageError: The location is not well formed.
        MissingDependencyError: It is on S3 and boto3 is not installed.
    """
    location = parse_location(url)
    return LocalStore(location) if location.is_local else S3Store(location)


def fetch(
    url: str | Path | Location, local_path: Path | str, *, progress: Progress | None = None
) -> Transfer:
    """Copy an object to a local file, atomically; its recorded SHA-256 is checked on the way.

    Raises:
        NotFoundError: The object does not exist.
        StoreError: The storage failed, or the bytes are not those that were stored.
        DiskFullError: The local disk has no room left.
    """
    target = LocalStore(Location(scheme="file", path=Path(local_path)))
    return copy_object(open_store(url), target.open_writer(), progress)


def put_file(
    local_path: Path | str, url: str | Path | Location, *, progress: Progress | None = None
) -> Transfer:
    """Copy a local file to a location, atomically, and check what arrived.

    Raises:
        NotFoundError: The file or the bucket does not exist.
        StoreError: The storage failed, or what it holds is not what was sent.
        DiskFullError: The destination has no room left.
    """
    return open_store(url).put_file(Path(local_path), progress=progress)


def read_ranges(store: Store, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each ``(offset, length)``, in order, read in parallel."""
    with ThreadPoolExecutor(max(1, min(READERS, len(ranges)))) as pool:
        return list(pool.map(lambda part: store.read_range(*part), ranges))
