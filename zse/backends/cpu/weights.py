"""From a file to matrices that multiply: which form each stored tensor takes in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.cpu.int4_linear import Int4Linear
from zse.backends.cpu.int8_linear import MAX_COLUMNS, Int8Linear, int8_is_exact
from zse.backends.cpu.linear import DenseLinear, int8_tiles, nf4_tiles, plain_tiles
from zse.backends.resident import UPCAST_LIMIT_BYTES, form_of, kept_bytes
from zse.format.as_torch import dequantize, stored_parts
from zse.format.nf4 import NF4_CODES
from zse.format.spec import Scheme

if TYPE_CHECKING:
    import torch

    from zse.backends.cpu.linear import Linear
    from zse.backends.resident import Form
    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry

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
        self._upcasts = reader.size_bytes <= UPCAST_LIMIT_BYTES
        self.kept_bytes = 0
        """Bytes of this process's own memory that weights take."""
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

    def clear(self) -> None:
        """Drop every tensor; views of the mapping must be gone before the file is closed."""
        self._linears.clear()
        self._vectors.clear()
        self._embed_parts = {}

    def _load(self, reader: ZSEReader, entry: TensorEntry) -> None:
        if entry.name == EMBED and not self._tied:
            return
        parts = stored_parts(reader, entry.name)
        packs = entry.shape[-1] < MAX_COLUMNS and int8_is_exact()
        form = form_of(entry, upcasts=self._upcasts, packs_int8=packs)
        self.kept_bytes += kept_bytes(entry, form)
        if form == "vector":
            self._vectors[entry.name] = dequantize(entry, parts).clone()
        else:
            self._linears[entry.name] = make_linear(entry, parts, form)


def make_linear(entry: TensorEntry, parts: dict[str, torch.Tensor], form: Form) -> Linear:
    """Return the multiplying form of a stored matrix.

    Args:
        entry: Its entry, of shape [N, K].
        parts: Its parts by role.
        form: What it becomes.
    """
    if form == "dense":
        return DenseLinear(parts["data"].float().clone())
    if form == "int8":
        return Int8Linear(parts["qweight"], parts["scale"])
    if form == "int4":
        return Int4Linear(parts["qweight"], parts["scale_zero"], entry.group_size)
    if entry.scheme.is_plain:
        return plain_tiles(parts["data"])
    if entry.scheme is Scheme.INT8:
        return int8_tiles(parts["qweight"], parts["scale"])
    return nf4_tiles(parts["qweight"], parts["absmax"], entry.group_size, NF4_CODES)
