"""What the driver says about a GPU without a context: cheap, and possible while it is busy."""

from __future__ import annotations

import ctypes
import uuid
from typing import TYPE_CHECKING

from zse.device.cuda.errors import CudaRule
from zse.device.facts import GpuInfo
from zse.environment import one_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.cuda.library import Driver

WARP_THREADS = 10
MULTIPROCESSORS = 16
COMPUTE_MODE = 20
_MEMORY_CLOCK_KILOHERTZ = 36
_MEMORY_BUS_BITS = 37
_L2_BYTES = 38
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SHARED_MEMORY_OPTIN_BYTES = 97

MODE_PROHIBITED = 2
MODE_EXCLUSIVE = 3

_NAME_BYTES = 256
_TRANSFERS_PER_CLOCK = 2


def count_devices(driver: Driver) -> int:
    """Return how many GPUs this process sees; the driver is initialised by it."""
    driver.call("cuInit", 0)
    return driver.read(ctypes.c_int, "cuDeviceGetCount")


def seen_ordinals(driver: Driver) -> Sequence[int]:
    """Return the numbers of the GPUs that this process sees; the driver is initialised by it."""
    count = count_devices(driver)
    return range(count) if one_gpu.ordinal is None or count != 1 else (one_gpu.ordinal,)


def get_device(driver: Driver, ordinal: int) -> int:
    """Return the driver's number of a GPU.

    Raises:
        CudaError: There are fewer.
    """
    seen = seen_ordinals(driver)
    if ordinal not in seen:
        if one_gpu.ordinal is not None:
            raise CudaRule.NO_DEVICE(
                f"there is no GPU {ordinal} for this process, which uses GPU {one_gpu.ordinal}",
                hint="Count from 0; CUDA_VISIBLE_DEVICES, where it is set, says which are visible.",
            )
        found = "1 GPU is" if len(seen) == 1 else f"{len(seen)} GPUs are"
        raise CudaRule.NO_DEVICE(f"there is no GPU {ordinal}: {found} visible, counted from 0")
    return driver.read(ctypes.c_int, "cuDeviceGet", seen.index(ordinal))


def read_attribute(driver: Driver, device: int, attribute: int) -> int:
    return driver.read(ctypes.c_int, "cuDeviceGetAttribute", attribute, device)


def read_info(
    driver: Driver, ordinal: int, *, device: int | None = None, free_bytes: int = 0
) -> GpuInfo:
    """Describe a GPU; no context is made, which alone can tell ``free_bytes``."""
    device = get_device(driver, ordinal) if device is None else device
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.call("cuDeviceGetName", name, _NAME_BYTES, device)
    identity = (ctypes.c_ubyte * 16)()
    driver.call("cuDeviceGetUuid_v2", identity, device)

    def attribute(number: int) -> int:
        return read_attribute(driver, device, number)

    clock_hertz = attribute(_MEMORY_CLOCK_KILOHERTZ) * 1000
    bus_bytes = attribute(_MEMORY_BUS_BITS) / 8
    return GpuInfo(
        name=name.value.decode("utf-8", "replace"),
        target=f"sm_{attribute(_CAPABILITY_MAJOR)}{attribute(_CAPABILITY_MINOR)}",
        warp_threads=attribute(WARP_THREADS),
        total_bytes=driver.read(ctypes.c_size_t, "cuDeviceTotalMem_v2", device),
        free_bytes=free_bytes,
        multiprocessors=attribute(MULTIPROCESSORS),
        driver_version=driver.version(),
        shared_memory_optin_bytes=attribute(_SHARED_MEMORY_OPTIN_BYTES),
        l2_bytes=attribute(_L2_BYTES),
        bandwidth_bytes_per_second=clock_hertz * bus_bytes * _TRANSFERS_PER_CLOCK,
        ordinal=ordinal,
        uuid=f"GPU-{uuid.UUID(bytes=bytes(identity))}",
    )
