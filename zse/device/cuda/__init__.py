"""The CUDA driver by ctypes: one GPU, its memory, streams, kernels and graphs.

Imports only the standard library. A GPU is opened by ``Gpu.open``; everything it hands out is given
back by its own ``free`` or ``destroy``, or by ``Gpu.close``.
"""

from __future__ import annotations

from zse.device.cuda.errors import (
    CaptureError,
    CudaError,
    DeviceBusyError,
    DeviceFault,
    DriverMismatchError,
    DriverTooOldError,
    InvalidImageError,
    NoDeviceError,
    NoDriverError,
    OutOfDeviceMemoryError,
    ReleasedError,
    WrongArchitectureError,
)
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.graph import Capture, Graph, GraphExec
from zse.device.cuda.library import Driver
from zse.device.cuda.memory import DeviceBlock, HostBlock
from zse.device.cuda.module import Kernel, Module
from zse.device.cuda.pool import VirtualPool
from zse.device.cuda.stream import Event, Stream

__all__ = [
    "Capture",
    "CaptureError",
    "CudaError",
    "DeviceBlock",
    "DeviceBusyError",
    "DeviceFault",
    "Driver",
    "DriverMismatchError",
    "DriverTooOldError",
    "Event",
    "Gpu",
    "Graph",
    "GraphExec",
    "HostBlock",
    "InvalidImageError",
    "Kernel",
    "Module",
    "NoDeviceError",
    "NoDriverError",
    "OutOfDeviceMemoryError",
    "ReleasedError",
    "Stream",
    "VirtualPool",
    "WrongArchitectureError",
]
