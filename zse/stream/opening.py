"""From a path, an address or an open model to a source."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from zse.format.reader import ZSEReader
from zse.settings import load_settings
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.settings import Settings
    from zse.store.location import Location
    from zse.stream.remote import RemoteReader
    from zse.stream.source import ByteSource


def open_source(url: str | Path | Location, settings: Settings | None = None) -> ByteSource:
    """Open a local file or an object behind s3://, hf:// or https:// for reading in ranges.

    Args:
        url: The path or the address.
        settings: Who asks, and by which way; as the environment says when not given.

    Raises:
        UsageError: The location is not well formed.
        NotFoundError: There is no such file or object.
        StoreError: The storage refuses or cannot be reached.
    """
    if isinstance(url, Path):
        return LocalSource(url)
    # By name: local models are served without the modules that speak HTTP.
    location = importlib.import_module("zse.store.location").parse_location(url)
    if location.is_local:
        return LocalSource(location.path)
    objects = importlib.import_module("zse.store.objects")
    source: ByteSource = objects.open_object(location, settings or load_settings())
    return source


def open_remote(url: str | Location, settings: Settings | None = None) -> RemoteReader:
    """Open a .zse file behind an address: a few small requests, whatever its size.

    Raises:
        NotFoundError: There is no such object.
        FormatError: It is no .zse file, or a damaged one.
        StoreError: The storage refuses or cannot be reached.
    """
    reader: RemoteReader = importlib.import_module("zse.stream.remote").RemoteReader(
        open_source(url, settings)
    )
    return reader


def source_of(model: ModelFile) -> ByteSource:
    """Return the bytes of an open model: those of the file or object whose header it read.

    The name is not looked up again, so whatever was put in its place since is not read. The caller
    closes the source; the model still answers then.

    Raises:
        UsageError: The model was closed.
    """
    if isinstance(model, ZSEReader):
        return LocalSource(model.share_file())
    return cast("RemoteReader", model).source
