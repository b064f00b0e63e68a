"""The CUDA device with other ways to get pinned memory and to copy."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_HUGE_PAGE_BYTES = 2 << 20


class RegisteredGpu:
    """Pins huge pages that are there already, instead of asking the driver for memory."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpu, name)

    def allocate_host(self, length_bytes: int) -> RegisteredBlock:
        return RegisteredBlock(length_bytes)


class RegisteredBlock:
    def __init__(self, length_bytes: int) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._area = mmap.mmap(-1, length_bytes + _HUGE_PAGE_BYTES, private)
        self._area.madvise(mmap.MADV_HUGEPAGE)
        self._whole = (ctypes.c_char * len(self._area)).from_buffer(self._area)
        start = -ctypes.addressof(self._whole) % _HUGE_PAGE_BYTES
        self.address = ctypes.addressof(self._whole) + start
        for offset in range(0, length_bytes, _HUGE_PAGE_BYTES):
            ctypes.memset(self.address + offset, 0, 1)  # makes the huge page; the GIL is free
        self._pointer = ctypes.c_void_p(self.address)
        if code := library.cuMemHostRegister_v2(self._pointer, ctypes.c_size_t(length_bytes), 1):
            raise OSError(code, "cuMemHostRegister failed")
        self._unregister = library.cuMemHostUnregister
        self.view = memoryview(self._area)[start : start + length_bytes]

    def free(self) -> None:
        self._unregister(self._pointer)
        self.view.release()
        del self._whole
        self._area.close()


class BlockingGpu(RegisteredGpu):
    """Waits for each copy in the call that starts it: one call for a chunk instead of three."""

    def __init__(self, gpu: Any) -> None:
        super().__init__(gpu)
        self._copy = ctypes.CDLL("libcuda.so.1").cuMemcpyHtoD_v2_ptds
        self._copy.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]

    def copy_to_device(self, target: int, source: int, length_bytes: int, _stream: object) -> None:
        if code := self._copy(target, source, length_bytes):
            raise OSError(code, "cuMemcpyHtoD failed")

    def copy_functions(self) -> None:
        """Return nothing: all that happens here is Python."""

    def create_stream(self) -> Nothing:
        return Nothing()


class Nothing:
    """A stream that has nothing to wait for."""

    def synchronize(self) -> None:
        pass

    def destroy(self) -> None:
        pass
