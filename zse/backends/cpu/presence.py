"""The pages of a mapped file are made present by a thread while Python imports the rest.

The first token reads every weight. Where that finds a page that is not mapped, it waits for the
kernel, and on a cold disk for the disk. Huge pages are asked for first: a kernel that has them for
files then reads from the disk into such pages, maps 512 pages at once, and a step waits less for
page tables. What lies in the page cache already stays as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import address_of
from zse.units import MIB

if TYPE_CHECKING:
    from zse.format.reader import ZSEReader

_POPULATE_READ = 22
"""``MADV_POPULATE_READ``, since Linux 5.14."""
_FEWEST_BYTES = 32 * MIB
"""Less is read in less time than a thread takes to be started, and to get its turn."""
_BYTES_AT_ONCE = 8 * MIB
"""Whoever maps memory meanwhile waits as long as one call takes, a millisecond."""


def begin_to_map(reader: ZSEReader) -> threading.Thread | None:
    """Begin to make the weights present; None where it does not pay, or they are too many."""
    weights = reader.weights()
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    if not _FEWEST_BYTES <= len(weights) <= machine_bytes // 2:
        return None
    thread = threading.Thread(target=_map, args=(weights,), name="zse-pages", daemon=True)
    thread.start()
    return thread


def _map(weights: memoryview) -> None:
    """Make the pages of a view present; it keeps the mapping alive."""
    # Not the method of mmap, which keeps the interpreter from everyone for as long as it takes.
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = address_of(weights)
    first, end = address - address % mmap.PAGESIZE, address + len(weights)
    advise(first, end - first, mmap.MADV_HUGEPAGE)  # refused where nothing has them
    for place in range(first, end, _BYTES_AT_ONCE):
        if advise(place, min(end - place, _BYTES_AT_ONCE), _POPULATE_READ):
            advise(place, end - place, mmap.MADV_WILLNEED)  # an older kernel: at least from disk
            return
