"""Reads rows of tensors from a safetensors file with positioned reads.

A mapping would count the whole file as this process's memory while it is copied through; reading
rows into a small buffer keeps the peak at the size of the buffer. The header is checked as a
hostile one: every length before it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format.as_torch import bytes_from
from zse.format.safetensors import StoredTensor as StoredTensor
from zse.format.safetensors import read_exactly as read_exactly
from zse.format.safetensors import read_header, read_into
from zse.format.schemes import DType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DTYPES = {"F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}
_PACKED = "U8"
"""Of numbers that are quantized already, to MXFP4."""
_TORCH = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    _PACKED: torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Types that are read: the last five only of what is quantized already."""


class SafetensorsFile:
    """An open safetensors file. Reads are safe from several threads.

    Raises:
        CheckpointError: The file is missing, cut short, or its header breaks the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory: Callable[[int], torch.Tensor] = fresh_memory
        """Makes room, uint8 [bytes], for rows that are read."""
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be opened: {error.strerror}",
                hint="Download the checkpoint again; a file of it is missing.",
            ) from error
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            self.tensors = read_header(self._fd, path, self.size_bytes)
        except BaseException:
            os.close(self._fd)
            raise

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` in the stored dtype: [rows, columns], or [numbers].

        Rows are everything but the last axis.

        Raises:
            UnsupportedModelError: The dtype is none that is read.
            CheckpointError: The file ends before the rows do, or cannot be read.
        """
        dtype = _TORCH.get(tensor.dtype) or _TORCH[storage_dtype(tensor)]
        row_bytes = tensor.length_bytes // tensor.num_rows
        offset_bytes = tensor.offset_bytes + start * row_bytes
        data = self.memory((stop - start) * row_bytes)
        read_into(self._fd, self.path, offset_bytes, bytes_from(data))
        return data.view(dtype).view(stop - start, *tensor.shape[1:][-1:])

    def close(self) -> None:
        os.close(self._fd)


def fresh_memory(length_bytes: int) -> torch.Tensor:
    """Return room that nothing is in yet, uint8 [bytes]."""
    return torch.empty(length_bytes, dtype=torch.uint8)


def check_packed(tensor: StoredTensor) -> None:
    """Refuse a tensor that has no codes or scales of quantized numbers.

    Raises:
        UnsupportedModelError: Its numbers are not bytes.
    """
    if tensor.dtype != _PACKED:
        raise UnsupportedModelError(
            f"tensor {tensor.name} has dtype {tensor.dtype}; expected {_PACKED}",
            hint="Check that config.json belongs to this checkpoint.",
        )


def storage_dtype(tensor: StoredTensor) -> DType:
    """Return the dtype of a tensor that can be converted.

    Raises:
        UnsupportedModelError: It is none of F32, F16, BF16.
    """
    if tensor.dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"tensor {tensor.name} has dtype {tensor.dtype}; expected one of {', '.join(_DTYPES)}",
            hint="Convert the checkpoint that was not quantized.",
        )
    return _DTYPES[tensor.dtype]
