"""A GPU of host memory, some of which other processes see: ranks over Triton's interpreter."""

from __future__ import annotations

import ctypes
import mmap
import os

from interpreted_gpu import InterpretedGpu


class SharedHostMemory:
    """Pages behind a file that has no name."""

    def __init__(self, descriptor: int, length_bytes: int) -> None:
        self._descriptor = descriptor
        self._pages = mmap.mmap(descriptor, length_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.length_bytes = length_bytes

    def export(self) -> int:
        return os.dup(self._descriptor)

    def free(self) -> None:
        """Keep it: the process ends soon."""


class MappedHostMemory:
    """What is mapped already."""

    def __init__(self, address: int, length_bytes: int) -> None:
        self.address, self.length_bytes = address, length_bytes

    def free(self) -> None:
        pass


class SharedInterpretedGpu(InterpretedGpu):
    """What several GPUs of a host can do besides."""

    def allocate_shared(self, length_bytes: int) -> SharedHostMemory:
        descriptor = os.memfd_create("inbox")
        os.ftruncate(descriptor, length_bytes)
        return SharedHostMemory(descriptor, length_bytes)

    def open_shared(self, descriptor: int, length_bytes: int) -> SharedHostMemory:
        return SharedHostMemory(os.dup(descriptor), length_bytes)

    def map_host(self, host_address: int, length_bytes: int) -> MappedHostMemory:
        return MappedHostMemory(host_address, length_bytes)
