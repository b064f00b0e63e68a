"""A GPU of host memory, some of which other processes see: ranks over Triton's interpreter."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

from interpreted_gpu import HostStream, InterpretedGpu


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

    def wait_for_value(self, address: int, value: int, stream: HostStream) -> None:
        def wait() -> None:
            word = ctypes.c_uint32.from_address(address)
            end = time.monotonic() + 60
            while (word.value - value) & 1 << 31:
                assert time.monotonic() < end, "nobody sent what a stream waits for"
                time.sleep(0.0005)

        stream.put(wait)

    def write_value(self, address: int, value: int, stream: HostStream) -> None:
        def write() -> None:
            ctypes.c_uint32.from_address(address).value = value

        stream.put(write)

    def map_host(self, host_address: int, length_bytes: int) -> MappedHostMemory:
        return MappedHostMemory(host_address, length_bytes)
