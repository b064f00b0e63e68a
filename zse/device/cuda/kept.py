"""What stays of a GPU when its model leaves: the next model finds code and pinned buffers there.

A module belongs to the device's primary context, so whoever keeps one keeps that, too. Nothing is
kept unless ``keep_code`` was called: a process with one model has nobody to keep it for.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from typing import TYPE_CHECKING

from zse.device.cuda.module import load_code
from zse.device.loader.library import driver_of, load_library

if TYPE_CHECKING:
    from zse.device.cuda.library import Driver
    from zse.device.loader.library import CopyFunctions

KEPT_BUFFER_BYTES = 128 << 20
"""Of pinned memory, at most: what the threads of a load have is less."""


class KeptCode:
    """The modules of one device, by the digests of their images, and buffers; any thread may ask.

    Buffers are those through which weights are copied. A load of a tenth of a model takes less time
    than making them and giving them back.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._device = device
        self._context = driver.read(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
        self._handles: dict[bytes, int] = {}
        self._buffers: int | None = None
        self._lock = threading.Lock()

    def load(self, image: bytes) -> int:
        """Return the driver's number for a module, loaded the first time that it is asked for.

        Raises:
            CudaError: The driver cannot read it.
        """
        digest = hashlib.sha256(image).digest()
        with self._lock:
            if digest not in self._handles:
                self._handles[digest] = load_code(self._driver, image)
            return self._handles[digest]

    def buffers(self, functions: CopyFunctions) -> int:
        """Return what keeps buffers between loads; 0 where no library does."""
        library = load_library()
        if library is None:
            return 0
        with self._lock:
            if self._buffers is None:
                kept: int | None = library.keep(driver_of(functions), KEPT_BUFFER_BYTES)
                self._buffers = kept
            return self._buffers or 0

    def drop(self) -> None:
        """Give everything back, the context in the end."""
        self._driver.call("cuCtxSetCurrent", self._context)
        self._drop_buffers()
        for handle in self._handles.values():
            self._driver.release("cuModuleUnload", handle)
        self._handles.clear()
        self._driver.release("cuDevicePrimaryCtxRelease_v2", self._device)

    def _drop_buffers(self) -> None:
        buffers, self._buffers = self._buffers, None
        library = load_library()
        if buffers is not None and library is not None:
            library.drop(buffers)  # of a lost context everything is gone already


class _Keeping:
    """What this process keeps."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.by_device: dict[int, KeptCode] = {}
        self.lock = threading.Lock()


_keeping = _Keeping()


def keep_code() -> None:
    """Keep code and buffers from now on."""
    _keeping.is_wanted = True


def drop_code() -> None:
    """Give back what is kept; no model may use it any more. Later code is kept again."""
    with _keeping.lock:
        kept, _keeping.by_device = _keeping.by_device, {}
    for code in kept.values():
        code.drop()


def kept_code(driver: Driver, device: int) -> KeptCode | None:
    """Return where a device's code is kept; None where none is."""
    if not _keeping.is_wanted:
        return None
    with _keeping.lock:
        if device not in _keeping.by_device:
            _keeping.by_device[device] = KeptCode(driver, device)
        return _keeping.by_device[device]
