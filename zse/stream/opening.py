"""From a path or an address to a source."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from zse.store.location import Location
    from zse.stream.source import ByteSource


def open_source(url: str | Path | Location) -> ByteSource:
    """Open a local file or an ``s3://bucket/key`` for reading in ranges.

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
    source: ByteSource = importlib.import_module("zse.stream.s3").open_s3(location)
    return source
