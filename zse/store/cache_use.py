"""Using the cache folder: made and tagged when needed, locked against cleaning, said unusable."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from zse.errors import DiskFullError, StoreError
from zse.store.local import FULL_ERRORS
from zse.store.locks import shared
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM_HINT = "Free space, run `zse cache clean`, or set ZSE_CACHE_DIR to a folder of a larger disk."
TAG_NAME = "CACHEDIR.TAG"
_FOLDER_HINT = "Set ZSE_CACHE_DIR to a folder that this user can write to."
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
_TAG = f"""{_SIGNATURE}
# This folder is the cache of zse: `zse cache clean` empties it, and backups may leave it out.
# What the first line means: https://bford.info/cachedir/
"""
_MAY_BE_THERE = {"lost+found", "tuned"}
"""A disk's own folder, and tables that a user put there before zse kept anything."""


@contextlib.contextmanager
def usable(cache_dir: Path) -> Iterator[None]:
    """Say it in one sentence when the cache folder cannot be used in the block.

    Raises:
        StoreError: It is no folder, or cannot be written to.
        DiskFullError: Its disk is full.
    """
    try:
        yield
    except DiskFullError as error:
        if str(cache_dir) not in error.message:
            raise
        raise DiskFullError(error.message, hint=ROOM_HINT) from error
    except OSError as error:
        if error.filename is None or not _is_related(Path(str(error.filename)), cache_dir):
            raise
        if error.errno in FULL_ERRORS:
            raise DiskFullError(
                f"the disk of the cache folder {cache_dir} is full", hint=ROOM_HINT
            ) from error
        # Making a folder where a file is says "File exists", which explains nothing.
        is_file = cache_dir.exists() and not cache_dir.is_dir()
        reason = os.strerror(errno.ENOTDIR) if is_file else error.strerror or error
        raise StoreError(
            f"the cache folder {cache_dir} (ZSE_CACHE_DIR) cannot be used: {reason}",
            hint=_FOLDER_HINT,
        ) from error


def make_cache_folder(cache_dir: Path) -> None:
    """Make the cache folder; one that zse begins gets the tag without which nothing is removed.

    A folder with things of others in it is used as well, but gets no tag: neither they nor backups
    should take it for a cache.

    Raises:
        OSError: It cannot be made or written to.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    if not {path.name for path in cache_dir.iterdir()} - _MAY_BE_THERE:
        write_whole(cache_dir / TAG_NAME, _TAG)


def is_tagged(cache_dir: Path) -> bool:
    """Whether the cache folder says that all of it is a cache, so that things of it may go."""
    with contextlib.suppress(OSError), (cache_dir / TAG_NAME).open(encoding="utf-8") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE
    return False


def check_tagged(cache_dir: Path) -> None:
    """Refuse to remove anything of a folder that zse did not begin.

    Raises:
        StoreError: It has no tag.
    """
    if not is_tagged(cache_dir):
        path = cache_dir / TAG_NAME
        raise StoreError(
            f"the cache folder {cache_dir} (ZSE_CACHE_DIR) was not begun by zse: it has no "
            f"{TAG_NAME}, and things of others may lie there; nothing was removed",
            hint="Set ZSE_CACHE_DIR to a folder of its own; or, if all of this one may go, say so: "
            f"echo '{_SIGNATURE}' > {quote(str(path))}",
        )


@contextlib.contextmanager
def using(cache_dir: Path, area: str) -> Iterator[Path]:
    """Yield a folder of the cache, made if need be, of which nothing is removed meanwhile.

    Raises:
        StoreError: The folder cannot be used.
        DiskFullError: Its disk is full.
    """
    with usable(cache_dir):
        make_cache_folder(cache_dir)
        with shared(area_lock(cache_dir, area)):
            folder = cache_dir / area
            folder.mkdir(parents=True, exist_ok=True)
            yield folder


def area_lock(cache_dir: Path, area: str) -> Path:
    """Return the lock of a folder of the cache, which a ``using`` block holds."""
    return cache_dir / f"{area}.lock"


def _is_related(path: Path, cache_dir: Path) -> bool:
    """Whether a path is the cache folder, in it, or where a folder that it is in should be."""
    is_inside = path == cache_dir or cache_dir in path.parents
    return is_inside or (path in cache_dir.parents and not path.is_dir())
