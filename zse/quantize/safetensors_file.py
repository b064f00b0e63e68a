"""Reads rows of tensors from a safetensors file with positioned reads.

A mapping would count the whole file as this process's memory while it is copied through; reading
rows into a small buffer keeps the peak at the size of the buffer. The header is checked as a
hostile one: every length before it is used.
"""

from __future__ import annotations

import json
import math
import os
import struct
from typing import TYPE_CHECKING, Any

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format.schemes import DType
from zse.records import record

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100 * 1024 * 1024  # the limit of the safetensors format itself
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


@record
class StoredTensor:
    """One tensor of a safetensors file; the offset counts from the start of the file."""

    name: str
    dtype: str
    """As safetensors spells it; it may be one that we do not read."""
    shape: tuple[int, ...]
    offset_bytes: int
    length_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of the last axis; of a vector its numbers."""
        return math.prod(self.shape[:-1] if len(self.shape) > 1 else self.shape)


class SafetensorsFile:
    """An open safetensors file. Reads are safe from several threads.

    Raises:
        CheckpointError: The file is missing, cut short, or its header breaks the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be opened: {error.strerror}",
                hint="Download the checkpoint again; a file of it is missing.",
            ) from error
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            self.tensors = self._read_header()
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
        data = read_exactly(self._fd, self.path, offset_bytes, (stop - start) * row_bytes)
        return torch.frombuffer(data, dtype=dtype).view(stop - start, *tensor.shape[1:][-1:])

    def close(self) -> None:
        os.close(self._fd)

    def _read_header(self) -> dict[str, StoredTensor]:
        prefix = os.pread(self._fd, 8, 0)
        if len(prefix) < 8:
            raise self._broken(f"it has {self.size_bytes} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MAX_HEADER_BYTES, self.size_bytes - 8):
            raise self._broken(f"its header claims {length} bytes of {self.size_bytes}")
        try:
            header = json.loads(os.pread(self._fd, length, 8))
        except (ValueError, RecursionError) as error:
            raise self._broken("its header is not JSON") from error
        if not isinstance(header, dict):
            raise self._broken("its header is not an object")
        header.pop("__metadata__", None)
        return {name: self._tensor(name, value, 8 + length) for name, value in header.items()}

    def _tensor(self, name: str, value: Any, data_start: int) -> StoredTensor:
        try:
            dtype, shape = value["dtype"], tuple(value["shape"])
            begin, end = value["data_offsets"]
            numbers = (*shape, begin, end)
        except (TypeError, KeyError, ValueError):
            raise self._broken(f"the entry of {name[:200]!r} is malformed") from None
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if not whole or begin > end or data_start + end > self.size_bytes:
            raise self._broken(
                f"tensor {name[:200]!r} lies at {begin}..{end} after byte {data_start}, "
                f"but the file has {self.size_bytes} bytes"
            )
        element_bytes = _element_bytes(dtype)
        if element_bytes and math.prod(shape) * element_bytes != end - begin:
            raise self._broken(f"tensor {name[:200]!r} has {end - begin} bytes for {dtype} {shape}")
        return StoredTensor(
            name=name,
            dtype=str(dtype),
            shape=shape,
            offset_bytes=data_start + begin,
            length_bytes=end - begin,
        )

    def _broken(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is not a whole safetensors file: {reason}",
            hint="Download the checkpoint again.",
        )


def read_exactly(fd: int, path: Path, offset_bytes: int, length_bytes: int) -> bytearray:
    """Return bytes of an open file, all that were asked for; ``path`` is for errors.

    Raises:
        CheckpointError: The file ends before they do, or cannot be read.
    """
    data = bytearray(length_bytes)
    view, done = memoryview(data), 0
    while done < length_bytes:
        try:
            count = os.preadv(fd, [view[done:]], offset_bytes + done)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read at byte {offset_bytes + done}: {error.strerror}",
                hint="Check the disk or the network file system.",
            ) from error
        if count == 0:
            raise CheckpointError(f"{path} was cut short while it was read")
        done += count
    return data


def _element_bytes(dtype: Any) -> int:
    """Return the size of a number in bytes; 0 of a type that is not read."""
    return _TORCH[dtype].itemsize if dtype in _TORCH else 0


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
