"""Finds the library that copies a file to a device, and launches many kernels in one call.

Its threads never wait for the interpreter.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from zse.device.loader import structs
from zse.device.processor import architecture
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

FOLDER = Path(__file__).parent
LIBRARIES = FOLDER / "lib"
FILE_NAME = "libzse-loader.so"
_LOG = logging.getLogger("zse.device")


@record
class CopyFunctions:
    """What of a driver is called by threads that have no Python."""

    addresses: tuple[int, ...]
    """Of functions of C, in the order of ``structs.DRIVER_FUNCTIONS``."""
    context: int
    """What ``set_current`` is called with, once in every thread."""
    kept: int = 0
    """Of ``LoaderLibrary.keep``: pinned buffers that outlive a load; 0 where none do."""
    stays_for: Callable[[Thread], None] | None = None
    """Has the device stay open until a thread has ended, which gives a load's buffers back; where
    there is none, whoever waits for a load waits for that as well."""
    fail: Callable[[str, int, int], NoReturn]
    """``fail(function, code, length_bytes)`` raises what a code of one of them means; the length is
    of the memory that may have been asked for."""


class LoaderLibrary:
    """The loaded library; its functions are those of ``loader.h`` and ``launches.h``.

    Raises:
        OSError: The file cannot be loaded.
        ValueError: It belongs to another version of zse.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        functions = ctypes.CDLL(str(path))
        self.start = functions.zse_load_start
        self.counters = functions.zse_load_counters
        self.left = functions.zse_load_left
        self.cancel = functions.zse_load_cancel
        self.wait = functions.zse_load_wait
        self.join = functions.zse_load_join
        self.end = functions.zse_load_end
        self.areas_begin = functions.zse_areas_begin
        self.areas_end = functions.zse_areas_end
        self.keep = functions.zse_keep
        self.kept_bytes = functions.zse_kept_bytes
        self.drop = functions.zse_drop
        # As launches do (``zse.device.cuda.library``), it keeps the interpreter: it takes no wait.
        self.repeat = ctypes.PyDLL(str(path)).zse_repeat
        self.start.argtypes = [POINTER(structs.Order), POINTER(c_int32)]
        self.start.restype = c_void_p
        self.counters.argtypes = [c_void_p]
        self.counters.restype = POINTER(structs.Counters)
        self.left.argtypes, self.left.restype = [c_void_p, c_int64], c_int64
        self.cancel.argtypes, self.cancel.restype = [c_void_p], None
        self.wait.argtypes, self.wait.restype = [c_void_p, c_int64, c_int64], c_int32
        self.join.argtypes, self.join.restype = [c_void_p], None
        self.end.argtypes, self.end.restype = [c_void_p], None
        self.areas_begin.argtypes, self.areas_begin.restype = [c_int32, c_int64], c_void_p
        self.areas_end.argtypes, self.areas_end.restype = [c_void_p], None
        self.keep.argtypes, self.keep.restype = [POINTER(structs.Driver), c_int64], c_void_p
        self.kept_bytes.argtypes, self.kept_bytes.restype = [c_void_p], c_int64
        self.drop.argtypes, self.drop.restype = [c_void_p], c_int32
        self.repeat.restype = c_int32
        self.repeat.argtypes = [c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_int32]
        self._check_structures(functions.zse_loader_sizes)

    def _check_structures(self, sizes_of: Callable[..., int]) -> None:
        made = (structs.Driver, structs.File, structs.Ahead, structs.Counters, structs.Order)
        sizes = [ctypes.sizeof(one) for one in made]
        expected = [*sizes[:2], structs.CHUNK.size, *sizes[2:]]
        found = (c_int64 * len(expected))()
        count = sizes_of(found, c_int64(len(expected)))
        if count != len(expected) or list(found) != expected:
            raise ValueError(f"structures have {list(found)} bytes, expected {expected}")


class Areas:
    """Memory for a load's buffers, made by a thread of C while the device is still being opened.

    Pages that a machine has never touched may take longer than the device. Without memory, or
    threads, there are none: a load makes what it needs itself.
    """

    def __init__(self, library: LoaderLibrary, *, count: int, length_bytes: int) -> None:
        self._library = library
        self.address: int | None = library.areas_begin(count, length_bytes)

    def close(self) -> None:
        """Give back what no load has taken; the load that may take some has ended."""
        address, self.address = self.address, None
        if address is not None:
            self._library.areas_end(address)


def library_path(of: str) -> Path:
    """Return where the library of an architecture lies, whether or not it is there."""
    return LIBRARIES / of / FILE_NAME


@cache
def load_library() -> LoaderLibrary | None:
    """Return the library for this machine; None where there is none that can be used."""
    path = library_path(architecture())
    if not path.is_file():
        _LOG.debug("%s is not there: threads of Python load", path)
        return None
    try:
        return LoaderLibrary(path)
    except (OSError, AttributeError, ValueError) as error:
        _LOG.warning("%s cannot be used, threads of Python load: %s", path, error)
        return None


def driver_of(functions: CopyFunctions) -> structs.Driver:
    return structs.Driver(*functions.addresses, functions.context)
