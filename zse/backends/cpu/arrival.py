"""Maps a file's pages ahead of the first step, beside the rest of a start.

Otherwise the first token takes a fault for every few pages: a tenth of a second for a model of 500
MB that is cached, and reads in small pieces for one that is not.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

from zse.units import MIB

_POPULATE_READ = 22
"""``MADV_POPULATE_READ``, Linux 5.14; older kernels refuse it, and pages come with their use."""
_PIECE_BYTES = 32 * MIB


class PageArrival:
    """A thread that maps a range of memory; it ends by itself.

    Args:
        address: Where mapped pages of a file begin.
        length_bytes: As long as they stay mapped, or until ``close``.
    """

    def __init__(self, address: int, length_bytes: int) -> None:
        self._first = address - address % mmap.PAGESIZE
        self._end = address + length_bytes
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="zse-pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and return when no page is mapped any more; it may have stopped before."""
        self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        advise = ctypes.CDLL(None).madvise  # not mmap's own, which holds the interpreter's lock
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start in range(self._first, self._end, _PIECE_BYTES):
            length_bytes = min(_PIECE_BYTES, self._end - start)
            if self._is_closed or advise(start, length_bytes, _POPULATE_READ):
                return
