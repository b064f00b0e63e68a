"""Ranges of what an address names, as whoever reads a model asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.settings import load_settings
from zse.store import parse_location
from zse.store.objects import open_object

if TYPE_CHECKING:
    from zse.store.http.ranged import RangedObject


def opened(url: str) -> RangedObject:
    """Open an object without reading more of it than its first byte."""
    return open_object(parse_location(url), load_settings(), prefix_bytes=1)


def read_range(source: RangedObject | str, offset: int, length: int) -> bytes:
    """Return ``length`` bytes from ``offset`` of an open object, or of what an address names."""
    found = bytearray(length)
    reader = opened(source) if isinstance(source, str) else source
    reader.read_into(offset, memoryview(found))
    return bytes(found)
