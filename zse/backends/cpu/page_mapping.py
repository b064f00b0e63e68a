"""Maps a file's pages by a thread ahead of the first step, beside the rest of a start.

The first token reads every weight. Where a page is not mapped it takes a fault, a tenth of a second
for 500 MB that are cached, and on a cold disk it waits for reads in small pieces.
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
    from collections.abc import Callable

    from zse.format.reader import ZSEReader

_POPULATE_READ = 22
"""``MADV_POPULATE_READ``, since Linux 5.14; older kernels refuse it."""
_FEWEST_BYTES = 32 * MIB
"""Less is read in less time than a thread takes to be started, and to get its turn."""
_BYTES_AT_ONCE = 8 * MIB
"""Whoever maps memory meanwhile waits as long as one call takes, a millisecond."""


def begin_to_map(reader: ZSEReader) -> threading.Thread | None:
    """Begin to map all weights of a file that was just opened, before its backend is imported.

    Huge pages are asked for first: a kernel that has them for files then reads from the disk into
    such pages, maps 512 pages at once, and a step waits less for page tables. What lies in the page
    cache already stays as it is.

    Returns:
        The thread; None where it does not pay, or the weights are too many.
    """
    weights = reader.weights()
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    if not _FEWEST_BYTES <= len(weights) <= machine_bytes // 2:
        return None
    thread = threading.Thread(target=_map_weights, args=(weights,), name="zse-pages", daemon=True)
    thread.start()
    return thread


class PageArrival:
    """A thread that maps the part of a file that a backend will read; it ends by itself.

    Args:
        address: Where mapped pages of the file begin.
        length_bytes: As long as they stay mapped, or until ``close``.
    """

    def __init__(self, address: int, length_bytes: int) -> None:
        self._is_closed = False
        self._thread = threading.Thread(
            target=_map_range,
            args=(address, length_bytes, lambda: self._is_closed),
            name="zse-pages",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop, and return when no page is mapped any more; it may have stopped before."""
        self._is_closed = True
        self._thread.join()


def _map_weights(weights: memoryview) -> None:
    """Map the pages of a view, which keeps the mapping alive."""
    address = address_of(weights)
    first = address - address % mmap.PAGESIZE
    length_bytes = address + len(weights) - first
    advise = _advice()
    advise(first, length_bytes, mmap.MADV_HUGEPAGE)  # refused where nothing has them
    if not _map_range(first, length_bytes):
        advise(first, length_bytes, mmap.MADV_WILLNEED)  # an older kernel: at least from disk


def _map_range(
    address: int, length_bytes: int, is_closed: Callable[[], bool] = lambda: False
) -> bool:
    """Map pages piece by piece until it is closed; return whether the kernel could."""
    advise = _advice()
    first, end = address - address % mmap.PAGESIZE, address + length_bytes
    for start in range(first, end, _BYTES_AT_ONCE):
        if is_closed():
            return True
        if advise(start, min(_BYTES_AT_ONCE, end - start), _POPULATE_READ):
            return False
    return True


def _advice() -> Callable[[int, int, int], int]:
    """Return ``madvise``; mmap's own would hold the interpreter's lock for as long as it takes."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
