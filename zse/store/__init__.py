"""Where bytes live: local folders and s3://, read in ranges, written whole or not at all."""

from zse.store.base import Entry, Progress, Store, Transfer, Writer
from zse.store.copying import copy_object
from zse.store.location import Location, parse_location
from zse.store.transfer import fetch, open_store, put_file, read_ranges

__all__ = [
    "Entry",
    "Location",
    "Progress",
    "Store",
    "Transfer",
    "Writer",
    "copy_object",
    "fetch",
    "open_store",
    "parse_location",
    "put_file",
    "read_ranges",
]
