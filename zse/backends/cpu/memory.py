"""Addresses: of bytes that are mapped already, and of anonymous memory that comes with its use."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

_NO_RESERVE = 0x4000
"""``MAP_NORESERVE``: what is never written is not counted against the machine's memory."""


class _Buffer(ctypes.Structure):
    """``Py_buffer``: ctypes itself gives no address of what is read-only."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("length_bytes", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_read_only", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return where a view's bytes begin; they stay there as long as the view lives."""
    buffer = _Buffer()
    python = ctypes.pythonapi
    python.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = buffer.address
    python.PyBuffer_Release(ctypes.byref(buffer))
    assert address is not None
    return int(address)


class Pages:
    """Anonymous memory, zeros until it is written: the kernel gives each page at its first use."""

    def __init__(self, length_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._area = mmap.mmap(-1, max(length_bytes, 1), flags=flags)
        self.view = memoryview(self._area)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._area))

    def empty(self, start_bytes: int, end_bytes: int) -> None:
        """Give back the pages that lie within a part; they are zeros again."""
        first = -(-start_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end_bytes // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            advise = ctypes.CDLL(None).madvise  # not mmap's own, which holds the interpreter's lock
            place, size = ctypes.c_void_p(self.address + first), ctypes.c_size_t(length)
            advise(place, size, mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Give it back; whoever still has a view keeps it alive."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self._area.close()
