"""Whole objects between places: open one, fetch one, put one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.store.copying import copy_object
from zse.store.local import LocalStore, LocalWriter
from zse.store.location import check_is_object, parse_location
from zse.store.partial import PartialWriter, identity_of
from zse.store.remote import RemoteStore

if TYPE_CHECKING:
    from zse.settings import Settings
    from zse.store.base import Progress, Store, Transfer, WritableStore
    from zse.store.location import Location


def open_store(url: str | Path | Location, settings: Settings) -> Store:
    """Return the store for a path or an address; nothing is read yet.

    Raises:
        UsageError: The location is not well formed.
        RefusedError: It is a web address that is not encrypted.
        StoreError: The endpoint or the profile of S3 is not usable.
    """
    location = parse_location(url)
    if location.is_local:
        return LocalStore(location)
    # Here: who reads one kind of place needs no client of another.
    if location.scheme == "s3":
        from zse.store.s3 import S3Store

        return S3Store(location, settings)
    if location.scheme == "hf":
        from zse.store.hub import HubStore

        return HubStore(location, settings)
    return RemoteStore(location, settings)


def open_writable(url: str | Path | Location, settings: Settings) -> WritableStore:
    """Return the store for a place that objects can be put to.

    Raises:
        UsageError: The location is not well formed, names a folder, or can only be read.
    """
    location = parse_location(url)
    if location.scheme not in ("file", "s3"):
        raise UsageError(
            f"{location} can be read, not written", hint="Write to a path or to s3://bucket/key."
        )
    check_is_object(location)
    if location.is_local:
        return LocalStore(location)
    from zse.store.s3 import S3Store

    return S3Store(location, settings)


def fetch(
    url: str | Path | Location,
    local_path: Path | str,
    settings: Settings,
    *,
    progress: Progress | None = None,
    resume: bool = False,
    sha256: str | None = None,
) -> Transfer:
    """Copy an object to a local file, atomically; the digest that its store knows is checked.

    Args:
        resume: Go on with what an earlier copy left, and leave what is done if this one fails.
        sha256: The digest that the caller knows.

    Raises:
        NotFoundError: The object does not exist.
        StoreError: The storage failed, or the bytes are not those that were stored.
        DiskFullError: The local disk has no room left.
    """
    source, path = open_store(url, settings), Path(local_path)
    writer = PartialWriter(path, identity_of(source)) if resume else LocalWriter(path)
    return copy_object(source, writer, progress, sha256=sha256)


def put_file(
    local_path: Path | str,
    url: str | Path | Location,
    settings: Settings,
    *,
    progress: Progress | None = None,
    resume: bool = False,
) -> Transfer:
    """Copy a local file to a location, atomically, and check what arrived.

    With ``resume`` it goes on with what an earlier copy left, and leaves what is done if it fails.

    Raises:
        UsageError: The location is a folder, or can only be read.
        NotFoundError: The file or the bucket does not exist.
        StoreError: The storage failed, or what it holds is not what was sent.
        DiskFullError: The destination has no room left.
    """
    return open_writable(url, settings).put_file(Path(local_path), progress=progress, resume=resume)
