"""A checkpoint folder in object storage: its files, each fetched once into the cache, as a folder.

What stands in the cache is an object under its own name, so the folder is one of links. A fetch
that was stopped goes on where it was.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.quantize.hub import ALLOWED_FILES, check_names
from zse.quantize.near_miss import near_listing, near_object
from zse.store import open_store
from zse.store.base import Entry
from zse.store.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.settings import Settings
    from zse.store import Location, Progress


def fetch_folder(
    location: Location,
    settings: Settings,
    *,
    check: Callable[[str, Sequence[str]], None] | None = None,
    progress: Progress | None = None,
) -> tempfile.TemporaryDirectory[str]:
    """Fetch the files of a checkpoint that a conversion reads.

    Args:
        location: ``s3://bucket/folder``, with or without a slash at the end.
        check: Given the folder's address and its files' names before anything is fetched.
        progress: Called with bytes of all files together.

    Returns:
        The folder, which lasts as long as the object.

    Raises:
        NotFoundError: There is no such folder, or it holds no config.json.
        UsageError: It is one object.
        ConversionError: It holds no checkpoint that can be converted.
        StoreError: The storage failed.
        DiskFullError: The cache has no room.
    """
    folder = replace(location, key=location.key.rstrip("/") + "/" if location.key else "")
    found = {
        name: entry
        for entry in open_store(folder, settings).list()
        if "/" not in (name := entry.location.key.removeprefix(folder.key)) and name
    }
    if not found:
        raise _nothing_at(location, folder, settings)
    names = sorted(found)
    if "config.json" not in found:
        raise near_listing(str(folder), names) or NotFoundError(
            f"{folder} holds no config.json", hint=f"See what is in it: zse ls {quote(str(folder))}"
        )
    check_names(str(folder), names)
    if check is not None:
        check(str(folder), names)
    wanted = [name for name in names if any(fnmatchcase(name, form) for form in ALLOWED_FILES)]
    return _linked({name: found[name] for name in wanted}, settings, progress)


def fetch_files(
    locations: Sequence[Location], settings: Settings, *, progress: Progress | None = None
) -> tempfile.TemporaryDirectory[str]:
    """Fetch objects that belong together; fails as ``fetch_folder`` does."""
    stores = [open_store(location, settings) for location in locations]
    entries = {
        store.location.name: Entry(location=store.location, size_bytes=store.size())
        for store in stores
    }
    return _linked(entries, settings, progress)


def _linked(
    entries: dict[str, Entry], settings: Settings, progress: Progress | None
) -> tempfile.TemporaryDirectory[str]:
    total_bytes = sum(entry.size_bytes for entry in entries.values())
    cache = Cache(settings)
    links = tempfile.TemporaryDirectory(prefix="zse-checkpoint-")
    before_bytes = 0
    try:
        for name, entry in entries.items():

            def report(done_bytes: int, _: int, before_bytes: int = before_bytes) -> None:
                if progress is not None:
                    progress(before_bytes + done_bytes, total_bytes)

            (Path(links.name) / name).symlink_to(cache.fetch(entry.location, report))
            before_bytes += entry.size_bytes
    except BaseException:
        links.cleanup()
        raise
    return links


def _nothing_at(location: Location, folder: Location, settings: Settings) -> Exception:
    if location.key and not location.is_prefix and open_store(location, settings).exists():
        return near_object(location)
    return NotFoundError(
        f"there is nothing in {folder}",
        hint=f"See what the bucket holds: zse ls s3://{location.bucket}/",
    )
