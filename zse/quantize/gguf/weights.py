"""The tensors of a GGUF file by Hugging Face's names, read row by row as float32."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from zse.errors import CheckpointError
from zse.quantize.gguf.architectures import LEFT_OUT, WHOLE, find_architecture
from zse.quantize.gguf.dequantize import dequantize
from zse.quantize.gguf.documents import read_header
from zse.quantize.safetensors_file import StoredTensor, read_exactly
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.quantize.gguf.architectures import Architecture
    from zse.quantize.gguf.header import GgufTensor

_DTYPES = {"F16": "F16", "BF16": "BF16"}
"""Types whose numbers are kept as they are; of all others they become float32."""


@record
class _Rows:
    """Some rows of a tensor, which Hugging Face knows as a tensor of its own."""

    tensor: GgufTensor
    first_row: int
    head_rows: int = 0
    """Rows of a head whose rotary pairs lie beside each other; 0: they lie apart already."""
    offset: float = 0.0
    """Is added to the numbers."""


class GgufFile:
    """An open GGUF file, as a checkpoint's weights. Reads are safe from several threads.

    Raises:
        CheckpointError: The file is missing, cut short, or breaks the format.
        UnsupportedModelError: Its architecture, or a type of its numbers, is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        self._prefix, architecture = find_architecture(self.header.settings, str(path))
        self._rows = dict(self._pieces(architecture))
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """By Hugging Face's names."""
        return {name: _stored(name, rows) for name, rows in self._rows.items()}

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop``, [rows, columns], or numbers of a vector.

        Raises:
            CheckpointError: The file ends before the rows do, or cannot be read.
            MissingDependencyError: Their type needs the package ``gguf``.
        """
        rows = self._rows[tensor.name]
        if len(tensor.shape) == 1:
            numbers = self._turned(rows, self._numbers(rows.tensor, rows.first_row, 1)[:, None])
            return numbers[start:stop, 0] + rows.offset if rows.offset else numbers[start:stop, 0]
        together = rows.head_rows or 1
        first, end = start // together * together, -(-stop // together) * together
        read = self._numbers(rows.tensor, rows.first_row + first, end - first)
        found = self._turned(rows, read.view(end - first, -1))
        return found[start - first : stop - first]

    def close(self) -> None:
        os.close(self._fd)

    def _numbers(self, tensor: GgufTensor, start: int, count: int) -> torch.Tensor:
        """Return the numbers of whole rows, one after the other."""
        data = read_exactly(
            self._fd,
            self.path,
            tensor.offset_bytes + start * tensor.row_bytes,
            count * tensor.row_bytes,
        )
        raw = torch.frombuffer(data, dtype=torch.uint8)
        if tensor.type.name in _DTYPES:
            return raw.view(torch.float16 if tensor.type.name == "F16" else torch.bfloat16)
        return dequantize(raw, tensor.type)

    def _turned(self, rows: _Rows, found: torch.Tensor) -> torch.Tensor:
        """Return whole heads with the first of all pairs before the second of all."""
        if not rows.head_rows:
            return found
        pairs = found.view(-1, rows.head_rows // 2, 2, found.shape[-1])
        return pairs.transpose(1, 2).reshape(found.shape)

    def _pieces(self, architecture: Architecture) -> Iterator[tuple[str, _Rows]]:
        experts = architecture.experts or {}
        for tensor in self.header.tensors.values():
            place, _, leaf = tensor.name.rpartition(".")
            layer, part = _layer_and_part(place)
            if part in LEFT_OUT:
                continue
            if layer is None and part in WHOLE:
                yield f"{WHOLE[part]}.{leaf}", self._whole(tensor, part, architecture)
            elif layer is not None and part in architecture.names:
                name = f"model.layers.{layer}.{architecture.names[part]}.{leaf}"
                yield name, self._whole(tensor, part, architecture)
            elif layer is not None and part in experts and len(tensor.shape) == 3:
                for index in range(tensor.shape[0]):
                    name = f"model.layers.{layer}.{experts[part].format(index=index)}.{leaf}"
                    yield name, _Rows(tensor=tensor, first_row=index * tensor.shape[1])
            else:
                yield tensor.name, _Rows(tensor=tensor, first_row=0)  # and is refused by its name

    def _whole(self, tensor: GgufTensor, part: str, architecture: Architecture) -> _Rows:
        head_rows = 0
        if architecture.pairs_are_neighbours and part in ("attn_q", "attn_k"):
            head_rows = self._head_rows(tensor, part)
        is_norm = part.endswith("norm")
        return _Rows(
            tensor=tensor,
            first_row=0,
            head_rows=head_rows,
            offset=-1.0 if is_norm and architecture.adds_one_to_norms else 0.0,
        )

    def _head_rows(self, tensor: GgufTensor, part: str) -> int:
        settings, prefix = self.header.settings, self._prefix
        heads = settings.get(f"{prefix}.attention.head_count")
        if part == "attn_k":
            heads = settings.get(f"{prefix}.attention.head_count_kv", heads)
        rows = tensor.shape[0]
        if type(heads) is not int or heads < 1 or rows % (2 * heads):
            raise CheckpointError(
                f"{self.path}: {tensor.name} has {rows} rows, which are not those of {heads} heads"
            )
        return rows // heads


def _layer_and_part(place: str) -> tuple[int | None, str]:
    """Return the layer and what of it: ``blk.3.attn_q`` -> 3 and ``attn_q``."""
    start, _, rest = place.partition(".")
    number, _, part = rest.partition(".")
    if start == "blk" and number.isdecimal() and part:
        return int(number), part
    return None, place


def _stored(name: str, rows: _Rows) -> StoredTensor:
    tensor = rows.tensor
    shape = tensor.shape[-2:]
    if name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        shape = (1, *shape)  # a matrix of one row is kept as a vector
    share = 1 if len(tensor.shape) < 3 else tensor.shape[0]
    return StoredTensor(
        name=name,
        dtype=_DTYPES.get(tensor.type.name, "F32"),
        shape=shape,
        offset_bytes=tensor.offset_bytes + rows.first_row * tensor.row_bytes,
        length_bytes=tensor.length_bytes // share,
    )
