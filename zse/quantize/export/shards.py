"""Safetensors files, written in one go: the header first, then each tensor a few rows at a time."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

from zse.errors import ConversionError
from zse.quantize.pieces import ELEMENT_BYTES, length_bytes
from zse.quantize.weight_files import INDEX_NAME, SINGLE_NAME
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.quantize.pieces import OutTensor

SHARD_BYTES = 5_000_000_000
"""What other tools cut at."""
_HEADER_ALIGN = 8


@record
class Shard:
    """A file and its tensors, in the order of the file."""

    name: str
    tensors: tuple[OutTensor, ...]

    @property
    def length_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(map(length_bytes, self.tensors))


def plan_shards(tensors: Sequence[OutTensor], shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """Divide tensors among files of at most so many bytes; a larger tensor has one of its own."""
    filled: list[list[OutTensor]] = [[]]
    room = shard_bytes
    for tensor in tensors:
        size = length_bytes(tensor)
        if size > room and filled[-1]:
            filled.append([])
            room = shard_bytes
        filled[-1].append(tensor)
        room -= size
    count = len(filled)
    if count == 1:
        return [_shard(SINGLE_NAME, filled[0])]
    return [
        _shard(f"model-{index + 1:05d}-of-{count:05d}.safetensors", members)
        for index, members in enumerate(filled)
    ]


def index_of(shards: Sequence[Shard]) -> dict[str, bytes]:
    """Return the index of several shards, by its name; none for one."""
    if len(shards) == 1:
        return {}
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = {"total_size": sum(shard.length_bytes for shard in shards)}
    told = {"metadata": total, "weight_map": dict(sorted(weight_map.items()))}
    return {INDEX_NAME: json.dumps(told, indent=2).encode() + b"\n"}


def write_shard(
    shard: Shard,
    path: Path,
    on_bytes: Callable[[int], None],
    on_end: Callable[[OutTensor], None],
) -> None:
    """Write a shard under its name, by way of a temporary one.

    Args:
        on_bytes: Called with the number of bytes that were written since.
        on_end: Called with each tensor that is written.

    Raises:
        ConversionError: A number is none that 16 bits hold.
        OSError: The disk is full, or failed.
    """
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as file:
        file.write(_header(shard))
        for tensor in shard.tensors:
            written = 0
            for chunk in tensor.chunks():
                file.write(chunk)
                written += len(chunk)
                on_bytes(len(chunk))
            if written != length_bytes(tensor):
                raise ConversionError(
                    f"tensor {tensor.name} gave {written} bytes; {tensor.dtype} "
                    f"{list(tensor.shape)} takes {length_bytes(tensor)}"
                )
            on_end(tensor)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _shard(name: str, tensors: list[OutTensor]) -> Shard:
    # The widest numbers first: each tensor then begins at a multiple of its own.
    ordered = sorted(tensors, key=lambda tensor: -ELEMENT_BYTES[tensor.dtype])
    return Shard(name=name, tensors=tuple(ordered))


def _header(shard: Shard) -> bytes:
    """Return the length of the header, and the header: JSON, filled up with spaces."""
    told: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard.tensors:
        start, end = end, end + length_bytes(tensor)
        offsets = {"data_offsets": [start, end]}
        told[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), **offsets}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGN)
    return struct.pack("<Q", len(text)) + text
