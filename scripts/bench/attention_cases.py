"""Inputs, references and timing on a GPU for ``attention.py``; needs torch with CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from gpu_timing import graph_us

from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_decode,
    attention_prefill,
    decode_counters_bytes,
    decode_partials_bytes,
    decode_splits,
)
from zse.kernels.attention.tiles import PrefillChunk, prefill_tiles
from zse.kernels.layout import (
    Activation,
    BlockTables,
    HeadInputs,
    HeadShape,
    PagedCache,
    Partials,
    Plain,
    Quantized,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

CUDA = "cuda"
BLOCK = 32
COLD_BYTES = 300_000_000
"""Read between two uses of the same memory: several times the second-level cache."""


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


@dataclass
class Output:
    """Room for activations of either kind."""

    buffer: Activation
    parts: tuple[torch.Tensor, ...]

    def read(self) -> torch.Tensor:
        values = self.parts[0].float()
        if len(self.parts) == 1:
            return values
        return (values.unflatten(-1, (-1, 128)) * self.parts[1].unsqueeze(-1)).flatten(-2)


def make_output(rows: int, columns: int, *, quantized: bool) -> Output:
    if not quantized:
        values = torch.zeros(rows, columns, dtype=torch.bfloat16, device=CUDA)
        return Output(Plain(rows=rows, columns=columns, values=values.data_ptr()), (values,))
    codes = torch.zeros(rows, columns, dtype=torch.int8, device=CUDA)
    scales, sums = (torch.zeros(rows, columns // 128, device=CUDA) for _ in range(2))
    buffer = Quantized(
        rows=rows,
        columns=columns,
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )
    return Output(buffer, (codes, scales, sums))


class Cache:
    """Paged keys and values of some layers, full of random numbers."""

    def __init__(
        self, lengths: Sequence[int], shape: HeadShape, layers: int, *, quantized: bool
    ) -> None:
        self.shape, self.quantized = shape, quantized
        counts = [-(-length // BLOCK) for length in lengths]
        size = (layers, 2, sum(counts), shape.kv_heads, BLOCK, shape.head_dim)
        if quantized:
            self.stored = torch.randint(-127, 128, size, dtype=torch.int8, device=CUDA)
            scale_size = (*size[:-1], shape.head_dim // 32)
            self.scales = (torch.rand(scale_size, device=CUDA) * 0.02 + 0.005).half()
        else:
            self.stored = torch.empty(size, dtype=torch.bfloat16, device=CUDA)
            for layer in self.stored:
                layer.normal_()
        order = torch.randperm(sum(counts), dtype=torch.int32).tolist()
        self.table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, count in enumerate(counts):
            self.table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        self.table = self.table.to(CUDA)
        self.tables = BlockTables(address=self.table.data_ptr(), stride=max(counts))

    def layer(self, index: int) -> PagedCache:
        keys, values = self.stored[index]
        scales = self.scales[index] if self.quantized else None
        return PagedCache(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            key_scales=scales[0].data_ptr() if scales is not None else 0,
            value_scales=scales[1].data_ptr() if scales is not None else 0,
        )

    def read(self, row: int, length: int) -> torch.Tensor:
        """Return float32 [2, kv_heads, length, head_dim] of the first layer."""
        blocks = self.table[row, : -(-length // BLOCK)].long()
        wide = self.stored[0][:, blocks].float()
        if self.quantized:
            scales = self.scales[0][:, blocks].float()
            wide = (wide.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)).flatten(-2)
        return wide.transpose(1, 2).flatten(2, 3)[:, :, :length]


def rotated(heads: torch.Tensor, cosines_sines: torch.Tensor) -> torch.Tensor:
    """Rotate [rows, heads, head_dim] by the table's rows [rows, head_dim]."""
    cosines, sines = cosines_sines[:, None].chunk(2, -1)
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


def attended(query: torch.Tensor, cached: torch.Tensor, first: int, window: int) -> torch.Tensor:
    """Return float32 [rows, heads, head_dim] of consecutive queries from position ``first``."""
    heads, keys = query.shape[1], cached.shape[2]
    wide = cached.repeat_interleave(heads // cached.shape[1], 1)
    positions = torch.arange(first, first + query.shape[0], device=CUDA)[:, None]
    columns = torch.arange(keys, device=CUDA)[None, :]
    seen = columns <= positions
    if window:
        seen &= columns > positions - window
    result = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), wide[0], wide[1], attn_mask=seen
    )
    return result.transpose(0, 1)


class DecodeCase:
    """One decode attention over layers that do not fit the second-level cache."""

    def __init__(
        self,
        launcher: Launcher,
        shape: HeadShape,
        lengths: Sequence[int],
        *,
        quantized_cache: bool = False,
        quantized_output: bool = True,
        bias: bool = True,
        window: int = 0,
        splits: int = 0,
        qkv_splits: int = 4,
        layers: int = 0,
    ) -> None:
        rows, self.lengths, self.window, self.shape = len(lengths), lengths, window, shape
        self.cache_bytes = 2 * sum(lengths) * shape.kv_heads * shape.head_dim
        self.cache_bytes *= 1 if quantized_cache else 2
        layers = layers or max(1, min(400, COLD_BYTES // self.cache_bytes))
        self.cache = Cache(lengths, shape, layers, quantized=quantized_cache)
        self.splits = splits or decode_splits(rows, shape.kv_heads, launcher.device)
        self.parts = torch.randn(qkv_splits, rows, shape.qkv_columns, device=CUDA)
        self.bias = torch.randn(shape.qkv_columns, device=CUDA)
        turns = torch.rand(max(lengths), shape.head_dim // 2, device=CUDA) * 6.28
        self.table = torch.cat((turns.cos(), turns.sin()), 1)
        self.positions = torch.tensor(lengths, dtype=torch.int32, device=CUDA) - 1
        partials = decode_partials_bytes(rows, shape, self.splits) // 4
        self.partials = torch.full((partials,), float("nan"), device=CUDA)
        counters = decode_counters_bytes(rows, shape) // 4
        self.counters = torch.zeros(counters, dtype=torch.int32, device=CUDA)
        columns = shape.num_heads * shape.head_dim
        self.output = make_output(rows, columns, quantized=quantized_output)
        self.inputs = HeadInputs(
            qkv=Partials(
                rows=rows,
                columns=shape.qkv_columns,
                splits=qkv_splits,
                values=self.parts.data_ptr(),
            ),
            cosines_sines=self.table.data_ptr(),
            positions=self.positions.data_ptr(),
            bias=self.bias.data_ptr() if bias else 0,
        )
        self.sums = self.parts.sum(0) + (self.bias if bias else 0)
        self.launcher, self.layers = launcher, layers

    def call(self, layer: int = 0, tuned: Variant | None = None) -> None:
        attention_decode(
            self.launcher,
            self.inputs,
            self.shape,
            self.cache.layer(layer),
            self.cache.tables,
            DecodeWorkspace(partials=self.partials.data_ptr(), counters=self.counters.data_ptr()),
            self.output.buffer,
            rules=AttentionRules(window=self.window),
            splits=self.splits,
            tuned=tuned,
        )

    def error(self, tuned: Variant | None = None) -> float:
        """Return the largest relative error of a row, of two launches."""
        self.call(tuned=tuned)
        first = self.output.read().clone()
        self.call(tuned=tuned)
        torch.cuda.synchronize()
        if not torch.equal(first, self.output.read()) or self.counters.any():
            return float("inf")
        found, shape = self.output.read(), self.shape
        heads = self.sums.unflatten(1, (-1, shape.head_dim))[:, : shape.num_heads]
        queries = rotated(heads, self.table[self.positions.long()])
        errors = []
        for row, length in enumerate(self.lengths):
            cached = self.cache.read(row, length)
            expected = attended(queries[row : row + 1], cached, length - 1, self.window)
            errors.append(relative_error(found[row : row + 1], expected.flatten(1)))
        return max(errors)

    def microseconds(self, tuned: Variant | None = None) -> float:
        return graph_us(
            [lambda layer=layer: self.call(layer, tuned) for layer in range(self.layers)]
        )


class PrefillCase:
    """One prefill attention of chunks (first position, rows), one a sequence."""

    def __init__(
        self,
        launcher: Launcher,
        shape: HeadShape,
        chunks: Sequence[tuple[int, int]],
        *,
        queries: int = 128,
        quantized_cache: bool = False,
        window: int = 0,
    ) -> None:
        self.launcher, self.shape, self.window = launcher, shape, window
        lengths = [first + count for first, count in chunks]
        self.cache = Cache(lengths, shape, 1, quantized=quantized_cache)
        self.chunks, first_row = [], 0
        for row, (first, count) in enumerate(chunks):
            self.chunks.append(
                PrefillChunk(
                    first_row=first_row, num_rows=count, table_row=row, first_position=first
                )
            )
            first_row += count
        lists = prefill_tiles(self.chunks, queries)
        self.arrays = [
            torch.tensor(entries, dtype=torch.int32, device=CUDA)
            for entries in (
                lists.first_rows,
                lists.num_rows,
                lists.table_rows,
                lists.first_positions,
            )
        ]
        size = (first_row, shape.num_heads, shape.head_dim)
        self.queries = torch.randn(size, device=CUDA).bfloat16()
        self.found = torch.zeros(size, device=CUDA, dtype=torch.bfloat16)
        pairs = sum((2 * first + count) * count // 2 for first, count in chunks)
        self.flops = 4 * pairs * shape.num_heads * shape.head_dim

    def call(self, tuned: Variant | None = None) -> None:
        addresses = [array.data_ptr() for array in self.arrays]
        attention_prefill(
            self.launcher,
            self.queries.data_ptr(),
            self.shape,
            self.cache.layer(0),
            self.cache.tables,
            PrefillTiles(
                count=len(self.arrays[0]),
                first_rows=addresses[0],
                num_rows=addresses[1],
                table_rows=addresses[2],
                first_positions=addresses[3],
            ),
            self.found.data_ptr(),
            rules=AttentionRules(window=self.window),
            tuned=tuned,
        )

    def error(self, tuned: Variant | None = None) -> float:
        self.found.fill_(float("nan"))
        self.call(tuned)
        torch.cuda.synchronize()
        errors = []
        for chunk in self.chunks:
            rows = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
            cached = self.cache.read(chunk.table_row, chunk.first_position + chunk.num_rows)
            query = self.queries[rows].float()
            expected = attended(query, cached, chunk.first_position, self.window)
            errors.append(relative_error(self.found[rows], expected))
        return max(errors)

    def microseconds(self, tuned: Variant | None = None) -> float:
        return graph_us([lambda: self.call(tuned)], least=4, replays=5)
