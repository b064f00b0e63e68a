"""From a file to matrices that multiply: which form each stored tensor takes in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.cpu.int4_linear import Int4Linear
from zse.backends.cpu.int8_linear import MAX_COLUMNS, Int8Linear, int8_is_exact
from zse.backends.cpu.linear import DenseLinear, int8_tiles, nf4_tiles, plain_tiles
from zse.format.as_torch import dequantize, stored_parts
from zse.format.nf4 import NF4_CODES
from zse.format.spec import Scheme

if TYPE_CHECKING:
    import torch

    from zse.backends.cpu.linear import Linear
    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry

UPCAST_LIMIT_BYTES = 256 * 1024 * 1024
"""A model whose file is below this keeps its 16-bit matrices in float32, which is faster."""

EMBED = "embed.weight"
HEAD = "lm_head.weight"


class Weights:
    """Every tensor of one file, in the form that the operations use.

    Matrices are packed group by group; the mapped pages of a packed group are dropped at once, so
    memory never holds two copies of more than one group.
    """

    def __init__(self, reader: ZSEReader) -> None:
        self._linears: dict[str, Linear] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        self._upcast = reader.size_bytes <= UPCAST_LIMIT_BYTES
        self._tied = HEAD not in reader.names()
        for group in reader.header.groups:
            for entry in reader.tensors_of(group.name):
                self._load(reader, entry)
            reader.release(group.name)
        # Rows of the embedding are gathered from the mapping: only what is touched is resident.
        self._embed_entry = reader.entry(EMBED)
        self._embed_parts = stored_parts(reader, EMBED)

    def linear(self, name: str) -> Linear:
        """Return a matrix by name; the head of a tied model is its embedding."""
        return self._linears[EMBED if name == HEAD and self._tied else name]

    def vector(self, name: str) -> torch.Tensor:
        """Return a float32 norm weight or bias."""
        return self._vectors[name]

    def embedding_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return float32 embedding rows [tokens, hidden] of int64 token ids [tokens]."""
        rows = {role: part[token_ids] for role, part in self._embed_parts.items()}
        if self._embed_entry.scheme.is_plain:
            return rows["data"].float()
        shape = (token_ids.shape[0], self._embed_entry.shape[1])
        return dequantize(replace(self._embed_entry, shape=shape), rows)

    def memory_bytes(self) -> int:
        """Return the bytes of this process's own memory that weights take."""
        vectors = sum(tensor.numel() * 4 for tensor in self._vectors.values())
        return vectors + sum(linear.memory_bytes() for linear in self._linears.values())

    def clear(self) -> None:
        """Drop every tensor; views of the mapping must be gone before the file is closed."""
        self._linears.clear()
        self._vectors.clear()
        self._embed_parts = {}

    def _load(self, reader: ZSEReader, entry: TensorEntry) -> None:
        parts = stored_parts(reader, entry.name)
        if len(entry.shape) == 1:
            self._vectors[entry.name] = dequantize(entry, parts).clone()
        elif entry.name != EMBED or self._tied:
            self._linears[entry.name] = make_linear(entry, parts, upcast=self._upcast)


def make_linear(entry: TensorEntry, parts: dict[str, torch.Tensor], *, upcast: bool) -> Linear:
    """Return the multiplying form of a stored matrix.

    Args:
        entry: Its entry, of shape [N, K].
        parts: Its parts by role.
        upcast: Keep 16-bit weights in float32 instead of making tiles of them float32 every time.
    """
    if entry.scheme.is_plain:
        data = parts["data"]
        return DenseLinear(data.float().clone()) if upcast else plain_tiles(data)
    if entry.scheme is Scheme.INT8:
        if entry.shape[1] < MAX_COLUMNS and int8_is_exact():
            return Int8Linear(parts["qweight"], parts["scale"])
        return int8_tiles(parts["qweight"], parts["scale"])
    if entry.scheme is Scheme.INT4:
        return Int4Linear(parts["qweight"], parts["scale_zero"], entry.group_size)
    return nf4_tiles(parts["qweight"], parts["absmax"], entry.group_size, NF4_CODES)
