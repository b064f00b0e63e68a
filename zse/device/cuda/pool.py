"""Device memory that grows in place: the KV cache starts small and keeps its address.

A range of addresses is reserved once, which costs nothing; memory is put behind it piece by piece.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda import structs
from zse.device.cuda.errors import CudaError
from zse.device.cuda.memory import allocate
from zse.device.cuda.resource import Memory
from zse.units import align_up

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu
    from zse.device.cuda.library import Driver

_GRANULARITY_RECOMMENDED = 1


def properties_of(device: int, handle_types: int = 0) -> structs.AllocationProperties:
    """Return what memory on a device is asked for by; ``handle_types``: how it may be shared."""
    return structs.AllocationProperties(
        type=structs.ALLOCATION_PINNED,
        handle_types=handle_types,
        location=structs.MemoryLocation(type=structs.LOCATION_DEVICE, id=device),
    )


def granularity_bytes(driver: Driver, properties: structs.AllocationProperties) -> int:
    """Return the bytes that pieces of memory are multiples of."""
    return driver.read(
        ctypes.c_size_t,
        "cuMemGetAllocationGranularity",
        ctypes.byref(properties),
        _GRANULARITY_RECOMMENDED,
    )


def map_piece(driver: Driver, device: int, address: int, length_bytes: int, piece: int) -> None:
    """Put a piece of memory, wherever it lies, behind addresses that a device may use.

    Raises:
        CudaError: It cannot be; nothing is mapped then.
    """
    access = structs.AccessDescription(
        location=structs.MemoryLocation(type=structs.LOCATION_DEVICE, id=device),
        flags=structs.ACCESS_READ_WRITE,
    )
    driver.call("cuMemMap", address, length_bytes, 0, piece, 0)
    with contextlib.ExitStack() as undone:
        undone.callback(driver.release, "cuMemUnmap", address, length_bytes)
        driver.call("cuMemSetAccess", address, length_bytes, ctypes.byref(access), 1)
        undone.pop_all()


class VirtualPool(Memory):
    """A range of device addresses with memory behind its first part.

    It never holds more than ``reserve_bytes``, rounded up to ``granularity_bytes``.
    """

    noun = "a memory pool"

    def __init__(self, gpu: Gpu, reserve_bytes: int) -> None:
        driver = gpu.owner.driver
        self._device = gpu.device
        self._properties = properties_of(gpu.device)
        self.granularity_bytes = granularity_bytes(driver, self._properties)
        self.reserved_bytes = align_up(max(reserve_bytes, 1), self.granularity_bytes)
        reserved = (self.reserved_bytes, 0, 0, 0)
        super().__init__(gpu.owner, driver.read(ctypes.c_uint64, "cuMemAddressReserve", *reserved))
        self.length_bytes = 0
        self._pieces: list[tuple[int, int]] = []  # handle, bytes; in the order of addresses

    def grow(self, to_bytes: int) -> int:
        """Put memory behind the range, in whole pieces of ``granularity_bytes``; see ``gpu.Pool``.

        What is there stays as it is. New bytes are undefined.

        Raises:
            OutOfDeviceMemoryError: So much is not free; the pool is as before.
            CudaError: It is more than what was reserved.
        """
        wanted = align_up(to_bytes, self.granularity_bytes)
        if wanted > self.reserved_bytes:
            raise CudaError(
                f"a memory pool of {self.reserved_bytes} bytes cannot grow to {to_bytes}"
            )
        if wanted > self.length_bytes:
            self._append(self.handle + self.length_bytes, wanted - self.length_bytes)
            self.length_bytes = wanted
        return self.length_bytes

    def _append(self, address: int, length_bytes: int) -> None:
        driver = self._driver
        piece = ctypes.c_uint64()
        properties = ctypes.byref(self._properties)
        allocate(driver, "cuMemCreate", ctypes.byref(piece), length_bytes, properties, 0)
        with contextlib.ExitStack() as undone:
            undone.callback(driver.release, "cuMemRelease", piece.value)
            map_piece(driver, self._device, address, length_bytes, piece.value)
            undone.pop_all()
        self._pieces.append((piece.value, length_bytes))

    def _give_back(self, handle: int) -> None:
        address = handle
        for piece, length_bytes in self._pieces:
            self._driver.release("cuMemUnmap", address, length_bytes)
            self._driver.release("cuMemRelease", piece)
            address += length_bytes
        self._pieces.clear()
        self.length_bytes = 0
        self._driver.release("cuMemAddressFree", handle, self.reserved_bytes)
