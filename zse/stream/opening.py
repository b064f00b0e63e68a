"""From a path, an address or an open model to a source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from zse.errors import MissingDependencyError
from zse.format.reader import ZSEReader
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from types import ModuleType

    from zse.format.model_file import ModelFile
    from zse.settings import Settings
    from zse.store.location import Location
    from zse.stream.remote import RemoteReader
    from zse.stream.source import ByteSource, DirectMode


def open_source(url: str | Path | Location, settings: Settings) -> ByteSource:
    """Open a local file or an object behind s3://, hf:// or https:// for reading in ranges.

    Raises:
        UsageError: The location is not well formed.
        NotFoundError: There is no such file or object.
        StoreError: The storage refuses or cannot be reached.
    """
    if isinstance(url, Path):
        return LocalSource(url)
    # Local models are served without the modules that speak HTTP.
    if isinstance(url, str) and url.startswith("oci://"):
        found: ByteSource = registry_reader().open_oci(url, settings)
        return found
    from zse.store.location import parse_location

    location = parse_location(url)
    if location.is_local:
        return LocalSource(location.path)
    from zse.store.objects import open_object

    return open_object(location, settings)


def open_remote(url: str | Location, settings: Settings) -> RemoteReader:
    """Open a .zse file behind an address: a few small requests, whatever its size.

    Raises:
        NotFoundError: There is no such object.
        FormatError: It is no .zse file, or a damaged one.
        StoreError: The storage refuses or cannot be reached.
    """
    from zse.stream.remote import RemoteReader

    return RemoteReader(open_source(url, settings))


def source_of(model: ModelFile, *, direct: DirectMode = "auto") -> ByteSource:
    """Return the bytes of an open model: those of the file or object whose header it read.

    The name is not looked up again, so whatever was put in its place since is not read. The caller
    closes the source; the model still answers then, and has what it keeps. ``direct`` is for files
    of this machine.

    Raises:
        UsageError: The model was closed.
    """
    if isinstance(model, ZSEReader):
        return LocalSource(model.share_file(), direct=direct)
    source = cast("RemoteReader", model).source
    lend = getattr(source, "lend", None)
    return source if lend is None else cast("ByteSource", lend())


def registry_reader() -> ModuleType:
    """Return the module that reads models out of registries.

    Raises:
        MissingDependencyError: An image that only serves has no client of registries.
    """
    try:
        from zse.stream import oci
    except ImportError as error:
        raise MissingDependencyError(
            f"nothing here speaks with registries: {error}",
            hint="Mount the image as a volume and serve the file in it, or name the model's "
            "address in an object store.",
        ) from error
    return oci
