"""Opening a GPU takes the driver a quarter of a second: begin before anything else is imported.

The driver starts once a process and makes one context a device. Whoever opens the GPU later finds
it made, or waits for it. Errors are left to that later opening, which can say what they mean.
"""

from __future__ import annotations

import _ctypes
import _thread
from time import perf_counter, sleep

from zse.environment import (
    device_hint,
    driver_has_started,
    num_gpu_nodes,
    one_gpu,
    show_one_gpu,
    use_one_gpu_queue,
)

_LIBRARY = "libcuda.so.1"
_NOW = 2
"""``RTLD_NOW``."""
TYPE_CHECKING = False  # without importing ``typing``
if TYPE_CHECKING:
    import ctypes
    import threading
    from collections.abc import Callable, Sequence


class Waking:
    """A thread that starts the driver.

    It is made without ``ctypes`` and ``threading``, whose imports take longer than all else that a
    process does before this. It can be waited for as those of ``threading``.
    """

    def __init__(self) -> None:
        self._running = _thread.allocate_lock()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())
        sleep(0)  # the thread runs until it is in the driver: nobody takes its turn before

    def join(self, timeout: float | None = None) -> None:
        if self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def is_alive(self) -> bool:
        return self._running.locked()

    def _run(self) -> None:
        try:
            self._start_driver()
        finally:
            self._running.release()

    def _start_driver(self) -> None:
        began = perf_counter()
        try:
            start = _ctypes.dlsym(_ctypes.dlopen(_LIBRARY, _NOW), "cuInit")
        except OSError:
            return  # which whoever opens the GPU is told
        _ctypes.call_function(start, (0,))
        early.note("driver", began)


class Early:
    """What was begun early, and when each part of it was done."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread | Waking] = []
        self.times: dict[str, tuple[float, float]] = {}
        """``driver`` and ``device``: begin and end on the clock of ``perf_counter``, in seconds."""

    def wait(self) -> None:
        """Wait until what was begun is over: the driver answers others sooner then, and at once."""
        for thread in tuple(self.threads):
            thread.join()

    def note(self, name: str, began: float) -> None:
        self.times.setdefault(name, (began, perf_counter()))


early = Early()


def wake_driver(arguments: Sequence[str]) -> Waking | None:
    """Begin to start the driver in a thread, unless a command line names another device.

    That is half of what opening a GPU takes, and the same for each of them. Where the settings turn
    out to name none, nothing has been made on any. On a machine of several GPUs it waits for the
    settings: where they name one, ``open_early`` has the driver look at that alone.
    """
    if not _is_gpu(device_hint(arguments)) or num_gpu_nodes() > 1:
        return None
    use_one_gpu_queue()
    waking = Waking()
    early.threads.append(waking)
    return waking


def open_early(device: str, *, is_only: bool = False) -> threading.Thread | None:
    """Begin to make the context of auto, cuda or cuda:N in a thread; return it, if there is one.

    Args:
        device: Its name.
        is_only: Whether this process uses no other GPU as long as it lives. The driver, if it has
            not started, is not shown others then: it takes 0.2 s for each.
    """
    ordinal = device.partition(":")[2]
    if not _is_gpu(device) or not (ordinal or "0").isdecimal():
        return None
    number = int(ordinal or 0)
    if is_only and one_gpu.ordinal is None and number < num_gpu_nodes() > 1:
        show_one_gpu(number)
    return _begin(_open, number)


def _is_gpu(device: str) -> bool:
    return device.partition(":")[0] in ("auto", "cuda")


def _begin(work: Callable[..., object], *arguments: int) -> threading.Thread:
    import threading

    use_one_gpu_queue()
    thread = threading.Thread(target=work, args=arguments, name="zse-gpu", daemon=True)
    thread.start()
    early.threads.append(thread)
    return thread


def _driver() -> ctypes.CDLL | None:
    """Return the driver once it has started; several threads may ask."""
    import ctypes

    began = perf_counter()
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    code = driver.cuInit(0)
    early.note("driver", began)
    driver_has_started()
    return driver if code == 0 else None


def _open(ordinal: int) -> None:
    import ctypes

    driver = _driver()
    began = perf_counter()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    place = ordinal if one_gpu.ordinal is None else 0
    if driver is not None and driver.cuDeviceGet(ctypes.byref(device), place) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        early.note("device", began)
