"""Where bytes live: folders, s3://, hf://, https://; read in ranges, written whole or not."""

from zse.store.base import Entry, Progress, Store, Transfer, Writer
from zse.store.cache import Cache
from zse.store.copying import copy_object
from zse.store.location import Location, is_address, parse_location
from zse.store.transfer import fetch, open_store, open_writable, put_file, read_ranges

__all__ = [
    "Cache",
    "Entry",
    "Location",
    "Progress",
    "Store",
    "Transfer",
    "Writer",
    "copy_object",
    "fetch",
    "is_address",
    "open_store",
    "open_writable",
    "parse_location",
    "put_file",
    "read_ranges",
]
