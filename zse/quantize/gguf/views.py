"""Tensors of a GGUF file as Hugging Face has them: which rows of which, in what order and form.

llama.cpp's converter splits, joins, turns and reorders. A view says where each row comes from, so
that any of them can be read alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from zse.format.mxfp4 import MXFP4_GROUP
from zse.quantize.safetensors_file import StoredTensor
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.quantize.gguf.header import GgufTensor

    Places: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
    """Numbers of rows as Hugging Face counts them -> as they are counted in the file, int64."""
    Change: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

KEPT = ("F16", "BF16")
"""Types whose numbers are kept as they are; of all others they become float32."""
_PLAIN = ("F32", "F64", "I8", "I16", "I32", "I64")
_MOST_UNREAD = 8
"""Rows that are read and left out, to save a read of its own for those behind them."""


@record
class View:
    """A tensor that Hugging Face has, made of tensors of the file."""

    tensors: tuple[GgufTensor, ...]
    """One below the other; their rows are counted from 0 through all of them."""
    shape: tuple[int, ...]
    places: Places | None = None
    """None: rows lie as they are."""
    columns: Places | None = None
    first_row: int = 0
    is_flat: bool = False
    """Whether ``places`` counts numbers and not rows: of vectors, and what is as small as they."""
    is_transposed: bool = False
    """Whether the last two axes have changed places."""
    change: Change | None = None
    """Of the numbers, as float32."""
    packed: str = ""
    """``blocks`` or ``scales`` of MXFP4: bytes instead of numbers."""

    def stored(self, name: str) -> StoredTensor:
        """Return what a checkpoint is told of it."""
        rows = 1 if len(self.shape) < 2 else _rows_of(self.shape)
        share = rows / max(1, sum(tensor.num_rows for tensor in self.tensors))
        length_bytes = sum(tensor.length_bytes for tensor in self.tensors)
        if not (self.is_flat or self.is_transposed or self.packed):
            length_bytes = round(length_bytes * share)
        return StoredTensor(
            name=name,
            dtype=self._dtype(name),
            shape=self.shape,
            offset_bytes=self.tensors[0].offset_bytes,
            length_bytes=length_bytes,
        )

    def numbers_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return where rows lie in the file."""
        placed = rows if self.places is None else self.places(rows)
        return placed + self.first_row

    def _dtype(self, name: str) -> str:
        """Return the type that rows are read in, or that of the blocks of a matrix."""
        if self.packed:
            return "U8"
        kinds = {tensor.type.name for tensor in self.tensors}
        is_changed = self.is_flat or self.is_transposed or self.columns is not None
        if is_changed or self.change is not None or len(kinds) > 1:
            return "F32"
        kind = kinds.pop()
        is_matrix = len(self.shape) == 2 and name.endswith("weight")
        return kind if kind in KEPT or (is_matrix and kind not in _PLAIN) else "F32"


def runs(numbers: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield runs of rows, first and last, that hold all of some ascending numbers."""
    ends = torch.nonzero(numbers.diff() > _MOST_UNREAD).flatten().tolist()
    first = 0
    for end in (*ends, len(numbers) - 1):
        yield int(numbers[first]), int(numbers[end])
        first = end + 1


def neighbours(head_rows: int) -> Places:
    """Return places of heads whose rotary pairs lie beside each other in the file (Llama)."""
    half = head_rows // 2

    def places(rows: torch.Tensor) -> torch.Tensor:
        head, within = rows // head_rows, rows % head_rows
        return head * head_rows + within % half * 2 + within // half

    return places


def alternating(count: int) -> Places:
    """Return places of rows that come from two tensors of ``count`` rows in turns (gpt-oss)."""
    return lambda rows: rows % 2 * count + rows // 2


def grouped(num_groups: int, sizes: tuple[int, ...]) -> Places:
    """Return places of rows that lie kind by kind in the file, and together for each group here."""

    def places(rows: torch.Tensor) -> torch.Tensor:
        group, within = rows // sum(sizes), rows % sum(sizes)
        found, begin, below = torch.zeros_like(rows), 0, 0
        for size in sizes:
            here = (within >= begin) & (within < begin + size)
            found = torch.where(here, below + group * size + within - begin, found)
            begin, below = begin + size, below + num_groups * size
        return found

    return places


def spread(num_groups: int, members: int, size: int, *, first: int = 0) -> Places:
    """Return places of heads that lie member by member in the file, and group by group here.

    Each head has ``size`` rows; rows below ``first`` stay.
    """

    def places(rows: torch.Tensor) -> torch.Tensor:
        behind = (rows - first).clamp(min=0)
        head, within = behind // size, behind % size
        group, member = head // members, head % members
        return torch.where(
            rows < first, rows, first + (member * num_groups + group) * size + within
        )

    return places


def heads_of_latent(keys: tuple[int, ...], value_dim: int) -> Places:
    """Return places of numbers of each head's keys, then values, each as wide as a latent.

    In the file all heads' keys lie before all values, and inputs before outputs: ``keys`` is their
    shape there, [heads, rank, key_dim] (DeepSeek).
    """
    heads, rank, key_dim = keys

    def places(numbers: torch.Tensor) -> torch.Tensor:
        row, column = numbers // rank, numbers % rank
        head, within = row // (key_dim + value_dim), row % (key_dim + value_dim)
        key = (head * rank + column) * key_dim + within
        value = heads * rank * key_dim + (head * value_dim + within - key_dim) * rank + column
        return torch.where(within < key_dim, key, value)

    return places


def mxfp4_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Return codes as checkpoints have them: uint8 [n, 17] -> [n, 16].

    Byte b of a checkpoint's holds codes 2b and 2b + 1; of a GGUF file's b and b + 16.
    """
    codes = torch.cat((blocks[:, 1:] & 15, blocks[:, 1:] >> 4), 1)
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def mxfp4_groups(view: View) -> int:
    """Return the groups of a row."""
    return view.tensors[0].shape[-1] // MXFP4_GROUP


def _rows_of(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape[:-1]:
        count *= size
    return count
