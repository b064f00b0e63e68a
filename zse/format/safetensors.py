"""What a safetensors file says of its tensors, checked as a hostile one: lengths before use.

It needs no torch: a server reads adapters by it.
"""

from __future__ import annotations

import json
import math
import os
import struct
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError
from zse.format.schemes import MAX_RANK
from zse.records import record

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100 * 1024 * 1024  # the limit of the safetensors format itself
_ELEMENT_BYTES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
}
"""Of types that anything here reads; of others the length is not held against the shape."""


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


def read_header(
    fd: int, path: Path, size_bytes: int, *, most_bytes: int = MAX_HEADER_BYTES
) -> dict[str, StoredTensor]:
    """Return the tensors of an open file by name; ``path`` is for errors.

    Args:
        fd: The file.
        path: What it is called.
        size_bytes: Its length.
        most_bytes: Longest header that is read.

    Raises:
        CheckpointError: The file is cut short, or its header breaks the format.
    """
    prefix = os.pread(fd, 8, 0)
    if len(prefix) < 8:
        raise _broken(path, f"it has {size_bytes} bytes")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(most_bytes, size_bytes - 8):
        raise _broken(path, f"its header claims {length} bytes of {size_bytes}")
    try:
        header = json.loads(os.pread(fd, length, 8))
    except (ValueError, RecursionError) as error:
        raise _broken(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not an object")
    header.pop("__metadata__", None)
    return {
        name: _tensor(path, size_bytes, name, value, 8 + length) for name, value in header.items()
    }


def read_exactly(fd: int, path: Path, offset_bytes: int, length_bytes: int) -> bytearray:
    """Return bytes of an open file, all that were asked for; ``path`` is for errors.

    Raises:
        CheckpointError: The file ends before they do, or cannot be read.
    """
    data = bytearray(length_bytes)
    read_into(fd, path, offset_bytes, memoryview(data))
    return data


def read_into(fd: int, path: Path, offset_bytes: int, view: memoryview) -> None:
    """Fill ``view`` (bytes) from an open file; ``path`` is for errors.

    Raises:
        CheckpointError: The file ends before it is full, or cannot be read.
    """
    done = 0
    while done < len(view):
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


def _tensor(path: Path, size_bytes: int, name: str, value: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape = value["dtype"], tuple(value["shape"])
        begin, end = value["data_offsets"]
        numbers = (*shape, begin, end)
    except (TypeError, KeyError, ValueError):
        raise _broken(path, f"the entry of {name[:200]!r} is malformed") from None
    whole = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
    whole = whole and len(shape) <= MAX_RANK
    if not whole or begin > end or data_start + end > size_bytes:
        raise _broken(
            path,
            f"tensor {name[:200]!r} lies at {begin}..{end} after byte {data_start}, "
            f"but the file has {size_bytes} bytes",
        )
    element_bytes = _ELEMENT_BYTES.get(dtype, 0) if isinstance(dtype, str) else 0
    if element_bytes and math.prod(shape) * element_bytes != end - begin:
        raise _broken(path, f"tensor {name[:200]!r} has {end - begin} bytes for {dtype} {shape}")
    return StoredTensor(
        name=name,
        dtype=str(dtype),
        shape=shape,
        offset_bytes=data_start + begin,
        length_bytes=end - begin,
    )


def _broken(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a whole safetensors file: {reason}",
        hint="Download it again.",
    )
