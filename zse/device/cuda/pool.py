"""Device memory that grows in place: the KV cache starts small and keeps its address.

A range of addresses is reserved once, which costs nothing; memory is put behind it piece by piece.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda import structs
from zse.device.cuda.errors import OUT_OF_MEMORY, CudaError
from zse.device.cuda.memory import out_of_memory
from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu

_GRANULARITY_RECOMMENDED = 1


class VirtualPool(Resource):
    """A range of device addresses with memory behind its first part.

    Args:
        gpu: Where.
        reserve_bytes: The most that it can ever hold; rounded up to ``granularity_bytes``.
    """

    noun = "a memory pool"

    def __init__(self, gpu: Gpu, reserve_bytes: int) -> None:
        driver = gpu.owner.driver
        self._location = structs.MemoryLocation(type=structs.LOCATION_DEVICE, id=gpu.device)
        self._properties = structs.AllocationProperties(
            type=structs.ALLOCATION_PINNED, location=self._location
        )
        granularity = ctypes.c_size_t()
        driver.call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granularity),
            ctypes.byref(self._properties),
            _GRANULARITY_RECOMMENDED,
        )
        self.granularity_bytes = granularity.value
        self.reserved_bytes = self._round_up(max(reserve_bytes, 1))
        address = ctypes.c_uint64()
        driver.call("cuMemAddressReserve", ctypes.byref(address), self.reserved_bytes, 0, 0, 0)
        super().__init__(gpu.owner, address.value)
        self.length_bytes = 0
        self._pieces: list[tuple[int, int]] = []  # handle, bytes; in the order of addresses

    @property
    def address(self) -> int:
        """Where it starts; it never moves."""
        return self.handle

    def grow(self, to_bytes: int) -> int:
        """Put memory behind the range; what is there stays as it is. New bytes are undefined.

        Args:
            to_bytes: How much it shall hold at least.

        Returns:
            How much it holds now: whole pieces of ``granularity_bytes``.

        Raises:
            OutOfDeviceMemoryError: So much is not free; the pool is as before.
            CudaError: It is more than what was reserved.
        """
        wanted = self._round_up(to_bytes)
        if wanted > self.reserved_bytes:
            raise CudaError(
                f"a memory pool of {self.reserved_bytes} bytes cannot grow to {to_bytes}"
            )
        if wanted > self.length_bytes:
            self._append(self.handle + self.length_bytes, wanted - self.length_bytes)
            self.length_bytes = wanted
        return self.length_bytes

    def free(self) -> None:
        self.release()

    def _append(self, address: int, length_bytes: int) -> None:
        driver = self._driver
        piece = ctypes.c_uint64()
        code = driver.raw("cuMemCreate")(
            ctypes.byref(piece), length_bytes, ctypes.byref(self._properties), 0
        )
        if code == OUT_OF_MEMORY:
            raise out_of_memory(driver, "cuMemCreate", length_bytes)
        if code:
            driver.fail("cuMemCreate", code)
        is_mapped = False
        try:
            driver.call("cuMemMap", address, length_bytes, 0, piece.value, 0)
            is_mapped = True
            access = structs.AccessDescription(
                location=self._location, flags=structs.ACCESS_READ_WRITE
            )
            driver.call("cuMemSetAccess", address, length_bytes, ctypes.byref(access), 1)
        except CudaError:
            if is_mapped:
                driver.release("cuMemUnmap", address, length_bytes)
            driver.release("cuMemRelease", piece.value)
            raise
        self._pieces.append((piece.value, length_bytes))

    def _round_up(self, size_bytes: int) -> int:
        return -(-size_bytes // self.granularity_bytes) * self.granularity_bytes

    def _give_back(self, handle: int) -> None:
        address = handle
        for piece, length_bytes in self._pieces:
            self._driver.release("cuMemUnmap", address, length_bytes)
            self._driver.release("cuMemRelease", piece)
            address += length_bytes
        self._pieces.clear()
        self.length_bytes = 0
        self._driver.release("cuMemAddressFree", handle, self.reserved_bytes)
