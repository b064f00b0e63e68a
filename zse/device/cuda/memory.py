"""Blocks of device memory and of pinned host memory."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda.errors import OUT_OF_MEMORY, CudaError, OutOfDeviceMemoryError
from zse.device.cuda.huge_pages import HUGE_PAGE_BYTES, HugePages
from zse.device.cuda.resource import Memory

if TYPE_CHECKING:
    from zse.device.cuda.library import Driver
    from zse.device.cuda.resource import Owner

_PORTABLE = 1  # pinned for every context of the process


class DeviceBlock(Memory):
    """Bytes on the GPU, 256-byte aligned.

    Raises:
        OutOfDeviceMemoryError: So many are not free.
    """

    noun = "a block of device memory"
    taken_back_by = "cuMemFree_v2"

    def __init__(self, owner: Owner, length_bytes: int) -> None:
        address = ctypes.c_uint64()
        allocate(owner.driver, "cuMemAlloc_v2", ctypes.byref(address), length_bytes)
        super().__init__(owner, address.value)
        self.length_bytes = length_bytes


class HostBlock(Memory):
    """Bytes of the host that the GPU reads and writes by itself.

    Large ones are huge pages that are registered; small ones, and all where the driver does not
    register, are the driver's own memory, which costs half a second a gigabyte.
    """

    noun = "a block of pinned memory"
    taken_back_by = "cuMemFreeHost"

    def __init__(self, owner: Owner, length_bytes: int) -> None:
        self._pages = _registered_pages(owner.driver, length_bytes)
        address = ctypes.c_void_p(self._pages.address if self._pages else 0)
        if self._pages is None:
            out = ctypes.byref(address)
            allocate(owner.driver, "cuMemHostAlloc", out, length_bytes, _PORTABLE)
        super().__init__(owner, address.value or 0)
        self.length_bytes = length_bytes
        array = (ctypes.c_ubyte * length_bytes).from_address(self.handle)
        self._view = memoryview(array).cast("B")

    @property
    def view(self) -> memoryview:
        """The bytes, writable. It and its slices are invalid after ``free``."""
        self.handle  # noqa: B018 - raises when the memory is gone
        return self._view

    def _give_back(self, handle: int) -> None:
        self._view.release()
        if self._pages is None:
            super()._give_back(handle)
            return
        self._driver.release("cuMemHostUnregister", handle)
        self._pages.close()


def read_memory(driver: Driver) -> tuple[int, int]:
    """Return free and total bytes of the current context's GPU."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def out_of_memory(driver: Driver, function: str, asked_bytes: int) -> OutOfDeviceMemoryError:
    """Return the error of a function that found too little memory: it says how much is free."""
    asked = f"{_gigabytes(asked_bytes)} ({asked_bytes} bytes)"
    if function == "cuMemHostAlloc":
        message = f"the host cannot pin {asked} of memory"
        hint = "Raise the memory limit of the container, or the locked-memory limit (ulimit -l)."
    else:
        try:
            free, total = read_memory(driver)
            left = f"{_gigabytes(free)} of {_gigabytes(total)} are free"
        except CudaError:
            left = "the driver does not say what is free"
        message, hint = f"out of GPU memory: {asked} asked, {left}", ""
    name = "CUDA_ERROR_OUT_OF_MEMORY"
    return OutOfDeviceMemoryError(
        message, hint=hint, function=function, code=OUT_OF_MEMORY, name=name
    )


def _registered_pages(driver: Driver, length_bytes: int) -> HugePages | None:
    """Return pinned huge pages; None where they are not worth it or cannot be had."""
    if length_bytes < HUGE_PAGE_BYTES:
        return None
    try:
        pages = HugePages(length_bytes)
    except OSError:
        return None
    if driver.raw("cuMemHostRegister_v2")(pages.address, length_bytes, _PORTABLE):
        pages.close()
        return None
    return pages


def allocate(driver: Driver, name: str, out: object, length_bytes: int, *rest: object) -> None:
    """Call a function of the driver that puts memory of so many bytes where ``out`` points.

    Raises:
        OutOfDeviceMemoryError: So many are not free: the message says how many are.
        CudaError: None were asked for, or the driver refused for another reason.
    """
    if length_bytes <= 0:
        raise CudaError(f"cannot allocate {length_bytes} bytes", function=name)
    code = driver.raw(name)(out, length_bytes, *rest)
    if code == OUT_OF_MEMORY:
        raise out_of_memory(driver, name, length_bytes)
    if code:
        driver.fail(name, code)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB"
