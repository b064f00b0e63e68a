"""Where bytes live: folders, s3://, hf://, https://; read and written, whole or not at all.

The names here are imported on first use: whoever only parses an address loads no client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zse.store.base import Entry, Progress, Store, Transfer
    from zse.store.cache import Cache
    from zse.store.copying import copy_object
    from zse.store.location import Location, is_address, parse_location
    from zse.store.transfer import fetch, open_store, open_writable, put_file

__all__ = [
    "Cache",
    "Entry",
    "Location",
    "Progress",
    "Store",
    "Transfer",
    "copy_object",
    "fetch",
    "is_address",
    "open_store",
    "open_writable",
    "parse_location",
    "put_file",
]

_MODULES = {
    "base": ("Entry", "Progress", "Store", "Transfer"),
    "cache": ("Cache",),
    "copying": ("copy_object",),
    "location": ("Location", "is_address", "parse_location"),
    "transfer": ("fetch", "open_store", "open_writable", "put_file"),
}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for (PEP 562)."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
