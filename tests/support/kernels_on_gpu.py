"""Kernels of the pack at hand on a real GPU, with tensors of the host as operands."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zse.backends.gpu.launcher import PackLauncher
from zse.device.cuda.gpu import Gpu
from zse.kernels.find import find_pack
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.gpu import Block


class KernelsOnGpu:
    """A launcher, and memory that tensors are copied to and from."""

    def __init__(self, gpu: Gpu, undo: ExitStack) -> None:
        settings = load_settings()
        named = settings.serve.load.device.kernels
        pack = find_pack(
            gpu.info,
            explicit=Path(named) if named else None,
            sections=None,
            cache_dir=settings.cache_dir,
        )
        self._gpu, self._undo = gpu, undo
        self._stream = gpu.create_stream()
        undo.callback(self._stream.destroy)
        self.launcher = PackLauncher(gpu, pack, self._stream)

    def room(self, length_bytes: int) -> Block:
        """Return memory full of bytes that nobody wrote."""
        block = self._gpu.allocate(length_bytes)
        self._undo.callback(block.free)
        self._gpu.fill(block.address, 0x7F, length_bytes, self._stream)
        return block

    def send(self, tensor: torch.Tensor) -> int:
        """Return the address of a copy."""
        length_bytes = tensor.numel() * tensor.itemsize
        host = self._gpu.allocate_host(length_bytes)
        ctypes.memmove(host.address, tensor.contiguous().data_ptr(), length_bytes)
        block = self.room(length_bytes)
        self._gpu.copy_to_device(block.address, host.address, length_bytes, self._stream)
        self._stream.synchronize()
        host.free()
        return block.address

    def read(self, address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Return what lies at an address, when all that was launched is done."""
        length_bytes = torch.Size(shape).numel() * dtype.itemsize
        host = self._gpu.allocate_host(length_bytes)
        self._gpu.copy_to_host(host.address, address, length_bytes, self._stream)
        self._stream.synchronize()
        found = torch.frombuffer(bytearray(host.view[:length_bytes]), dtype=dtype).view(shape)
        host.free()
        return found


@contextmanager
def kernels_on_gpu() -> Iterator[KernelsOnGpu]:
    with Gpu.open() as gpu, ExitStack() as undo:
        gpu.make_current()
        yield KernelsOnGpu(gpu, undo)
