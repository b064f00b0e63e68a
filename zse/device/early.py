"""Opening a GPU takes the driver a quarter of a second: begin before anything else is imported.

The driver makes one context a process and a device. Whoever opens the GPU later finds it made, or
waits for it. Errors are left to that later opening, which can say what they mean.
"""

from __future__ import annotations

import ctypes
import threading

from zse.settings import use_one_gpu_queue


def open_early(device: str) -> threading.Thread | None:
    """Begin to make the context of auto, cuda or cuda:N in a thread; return it, if there is one."""
    kind, _, ordinal = device.partition(":")
    if kind not in ("auto", "cuda") or not (ordinal or "0").isdecimal():
        return None
    use_one_gpu_queue()
    thread = threading.Thread(target=_open, args=(int(ordinal or 0),), name="zse-gpu", daemon=True)
    thread.start()
    return thread


def _open(ordinal: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
