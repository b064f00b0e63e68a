"""Device memory that several processes see, and memory of the host that a GPU sees.

A block is made by one process and handed to the others as a file descriptor; each maps it to
addresses of its own GPU, whose kernels then read and write it over NVLink or PCIe. The memory goes
when the last process has given it back.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda import structs
from zse.device.cuda.errors import CudaError, CudaRule
from zse.device.cuda.memory import allocate
from zse.device.cuda.pool import granularity_bytes, map_piece, properties_of
from zse.device.cuda.resource import Memory
from zse.units import align_up

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu
    from zse.device.cuda.library import Driver

_REGISTER_PORTABLE_MAPPED = 1 | 2


class SharedBlock(Memory):
    """Bytes of a GPU that other processes can map, rounded up to what the driver shares.

    Args:
        descriptor: Of another process's block of the same length; None makes one on this GPU. It
            stays the caller's to close.

    Raises:
        OutOfDeviceMemoryError: So many bytes are not free.
        CudaError: The GPUs cannot see each other, or the descriptor is none of such memory.
    """

    noun = "a block of shared device memory"

    def __init__(self, gpu: Gpu, length_bytes: int, descriptor: int | None = None) -> None:
        driver, device = gpu.owner.driver, gpu.device
        properties = properties_of(device, structs.HANDLE_FILE_DESCRIPTOR)
        self.length_bytes = align_up(max(length_bytes, 1), granularity_bytes(driver, properties))
        with contextlib.ExitStack() as undone:
            if descriptor is None:
                self._piece = _make_piece(driver, self.length_bytes, properties)
            else:
                self._piece = _import_piece(driver, descriptor)
            undone.callback(driver.release, "cuMemRelease", self._piece)
            reserved = (self.length_bytes, 0, 0, 0)
            address = driver.read(ctypes.c_uint64, "cuMemAddressReserve", *reserved)
            undone.callback(driver.release, "cuMemAddressFree", address, self.length_bytes)
            try:
                map_piece(driver, device, address, self.length_bytes, self._piece)
            except CudaError as error:
                if descriptor is None:
                    raise
                raise CudaRule.NO_PEER_ACCESS(
                    f"{gpu.name} cannot map {self.length_bytes} bytes of another GPU: {error}",
                    function=error.function,
                    code=error.code,
                    name=error.name,
                ) from error
            super().__init__(gpu.owner, address)
            undone.pop_all()

    def export(self) -> int:
        """Return a file descriptor by which another process maps it; the caller closes it."""
        self.handle  # noqa: B018 - raises when the memory is gone
        return self._driver.read(
            ctypes.c_int,
            "cuMemExportToShareableHandle",
            self._piece,
            structs.HANDLE_FILE_DESCRIPTOR,
            0,
        )

    def _give_back(self, handle: int) -> None:
        self._driver.release("cuMemUnmap", handle, self.length_bytes)
        self._driver.release("cuMemRelease", self._piece)
        self._driver.release("cuMemAddressFree", handle, self.length_bytes)


class MappedHost(Memory):
    """Memory of the host, made by whoever, that the GPU reads and writes while this is held.

    Args:
        host_address: Of whole pages that stay where they are until this is freed.
    """

    noun = "mapped memory of the host"

    def __init__(self, gpu: Gpu, host_address: int, length_bytes: int) -> None:
        driver = gpu.owner.driver
        driver.call("cuMemHostRegister_v2", host_address, length_bytes, _REGISTER_PORTABLE_MAPPED)
        with contextlib.ExitStack() as undone:
            undone.callback(driver.release, "cuMemHostUnregister", host_address)
            address = driver.read(ctypes.c_uint64, "cuMemHostGetDevicePointer_v2", host_address, 0)
            super().__init__(gpu.owner, address)
            undone.pop_all()
        self._host_address = host_address
        self.length_bytes = length_bytes

    def _give_back(self, handle: int) -> None:  # noqa: ARG002 - known to the driver by the other
        self._driver.release("cuMemHostUnregister", self._host_address)


def _make_piece(driver: Driver, length_bytes: int, properties: structs.AllocationProperties) -> int:
    piece = ctypes.c_uint64()
    properties_at = ctypes.byref(properties)
    allocate(driver, "cuMemCreate", ctypes.byref(piece), length_bytes, properties_at, 0)
    return piece.value


def _import_piece(driver: Driver, descriptor: int) -> int:
    return driver.read(
        ctypes.c_uint64,
        "cuMemImportFromShareableHandle",
        descriptor,
        structs.HANDLE_FILE_DESCRIPTOR,
    )
