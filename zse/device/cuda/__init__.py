"""The CUDA driver by ctypes: one GPU, its memory, streams, kernels and graphs.

Imports only the standard library. A GPU is opened by ``Gpu.open``; everything it hands out is given
back by its own ``free`` or ``destroy``, or by ``Gpu.close``.
"""

from __future__ import annotations

from zse.device.cuda.errors import CudaError, CudaRule, DeviceBusyError, OutOfDeviceMemoryError
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.graph import Capture, Graph, GraphExec
from zse.device.cuda.library import Driver
from zse.device.cuda.memory import DeviceBlock, HostBlock
from zse.device.cuda.module import Kernel, Module
from zse.device.cuda.pool import VirtualPool
from zse.device.cuda.stream import Event, Stream

__all__ = [
    "Capture",
    "CudaError",
    "CudaRule",
    "DeviceBlock",
    "DeviceBusyError",
    "Driver",
    "Event",
    "Gpu",
    "Graph",
    "GraphExec",
    "HostBlock",
    "Kernel",
    "Module",
    "OutOfDeviceMemoryError",
    "Stream",
    "VirtualPool",
]
