"""Inputs, references and timing on a GPU for ``attention.py``; needs torch with CUDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from gpu_timing import graph_us

from zse.backends.torch.kept import turned, unpacked
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
from zse.kernels.attention.variants import PREFILL_QUERIES, decode_tile
from zse.kernels.attention.wide import WideWorkspace, attention_decode_wide
from zse.kernels.layout import (
    Activation,
    BlockTables,
    CacheDtype,
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


BYTES_OF: dict[CacheDtype, float] = {"bf16": 2.0, "int8": 1.0625, "int4": 0.5625}
"""Bytes of a number of each type of cache, its share of the scale included."""


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
        self, lengths: Sequence[int], shape: HeadShape, layers: int, *, dtype: CacheDtype
    ) -> None:
        self.shape, self.dtype = shape, dtype
        counts = [-(-length // BLOCK) for length in lengths]
        size = (layers, 2, sum(counts), shape.kv_heads, BLOCK, shape.head_dim)
        if dtype == "int4":
            packed_size, scale_size = (
                (*size[:-1], shape.head_dim // columns) for columns in (2, 16)
            )
            self.stored = torch.randint(256, packed_size, dtype=torch.uint8, device=CUDA)
            # Scales of 2 ** -7 to 2 ** -5, of either sign: upper bytes of fp16.
            self.scales = torch.randint(0x20, 0x28, scale_size, dtype=torch.uint8, device=CUDA)
            self.scales += torch.randint(2, scale_size, dtype=torch.uint8, device=CUDA) * 0x80
        elif dtype == "int8":
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
        scales = None if self.dtype == "bf16" else self.scales[index]
        return PagedCache(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            key_scales=scales[0].data_ptr() if scales is not None else 0,
            value_scales=scales[1].data_ptr() if scales is not None else 0,
            is_narrow=self.dtype == "int4",
        )

    def read(self, row: int, length: int) -> torch.Tensor:
        """Return float32 [2, kv_heads, length, head_dim] of the first layer."""
        blocks = self.table[row, : -(-length // BLOCK)].long()
        wide = self.stored[0][:, blocks]
        if self.dtype == "int4":
            return (
                unpacked(wide, self.scales[0][:, blocks])
                .transpose(1, 2)
                .flatten(2, 3)[:, :, :length]
            )
        wide = wide.float()
        if self.dtype == "int8":
            scales = self.scales[0][:, blocks].float()
            wide = (wide.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)).flatten(-2)
        return wide.transpose(1, 2).flatten(2, 3)[:, :, :length]


def rotated(heads: torch.Tensor, cosines_sines: torch.Tensor) -> torch.Tensor:
    """Rotate the first columns of [rows, heads, head_dim] by the table's rows [rows, columns]."""
    cosines, sines = cosines_sines[:, None].chunk(2, -1)
    turning = cosines_sines.shape[1]
    first, second = heads[..., :turning].chunk(2, -1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat((*turned, heads[..., turning:]), -1)


def paired(shape: HeadShape, turning: int) -> list[int]:
    """Return the columns of a head in the order in which the cache has those of keys."""
    half, pairs = shape.head_dim // 2, turning // 2
    first = [*range(pairs), *range(turning, half + pairs)]
    return [*first, *range(pairs, turning), *range(half + pairs, shape.head_dim)]


def rules_of(window: int, sinks: torch.Tensor | None) -> AttentionRules:
    return AttentionRules(window=window, sinks=0 if sinks is None else sinks.data_ptr())


def attended(
    query: torch.Tensor,
    cached: torch.Tensor,
    first: int,
    window: int,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return float32 [rows, heads, head_dim] of consecutive queries from position ``first``.

    Sinks [heads] are tokens of score ``sinks`` without a value.
    """
    heads, keys = query.shape[1], cached.shape[2]
    wide = cached.repeat_interleave(heads // cached.shape[1], 1)
    positions = torch.arange(first, first + query.shape[0], device=CUDA)[:, None]
    columns = torch.arange(keys, device=CUDA)[None, :]
    seen = columns <= positions
    if window:
        seen &= columns > positions - window
    scores = query.transpose(0, 1) @ wide[0].transpose(1, 2) * query.shape[2] ** -0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)), 2)
    return (torch.softmax(scores, 2)[:, :, :keys] @ wide[1]).transpose(0, 1)


class DecodeCase:
    """One decode attention over layers that do not fit the second-level cache."""

    def __init__(
        self,
        launcher: Launcher,
        shape: HeadShape,
        lengths: Sequence[int],
        *,
        cache: CacheDtype = "bf16",
        quantized_output: bool = True,
        bias: bool = True,
        window: int = 0,
        splits: int = 0,
        qkv_splits: int = 4,
        layers: int = 0,
        sinks: bool = False,
        rotary_dim: int | None = None,
    ) -> None:
        rows, self.lengths, self.window, self.shape = len(lengths), lengths, window, shape
        seen = sum(min(length, window or length) for length in lengths)
        self.cache_bytes = 2 * seen * shape.kv_heads * shape.head_dim
        self.cache_bytes = int(
            self.cache_bytes * {"bf16": 2, "int8": 1.0625, "int4": 0.5625}[cache]
        )
        layers = layers or max(1, min(400, COLD_BYTES // self.cache_bytes))
        self.cache = Cache(lengths, shape, layers, dtype=cache)
        most = window and window + decode_tile(shape.head_dim)
        self.splits = splits or decode_splits(
            rows, shape.kv_heads, launcher.device, most, is_rounded=cache != "bf16"
        )
        self.sinks = torch.randn(shape.num_heads, device=CUDA) if sinks else None
        self.parts = torch.randn(qkv_splits, rows, shape.qkv_columns, device=CUDA)
        self.bias = torch.randn(shape.qkv_columns, device=CUDA)
        self.turning = shape.head_dim if rotary_dim is None else rotary_dim
        turns = torch.rand(max(lengths), self.turning // 2, device=CUDA) * 6.28
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
            rotary_dim=rotary_dim,
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
            rules=rules_of(self.window, self.sinks),
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
        heads = self.sums.unflatten(1, (-1, shape.head_dim))
        angles = self.table[self.positions.long()]
        queries = rotated(heads[:, : shape.num_heads], angles)[..., paired(shape, self.turning)]
        if self.cache.dtype == "int4":
            queries = turned(queries)
        errors = []
        for row, length in enumerate(self.lengths):
            cached = self.cache.read(row, length)
            one = slice(row, row + 1)
            expected = attended(queries[one], cached, length - 1, self.window, self.sinks)
            if shape.is_gated:
                gates = heads[one, shape.num_heads : 2 * shape.num_heads]
                expected = expected * torch.sigmoid(gates)
            errors.append(relative_error(found[one], expected.flatten(1)))
        return max(errors)

    def microseconds(self, tuned: Variant | None = None) -> float:
        return graph_us(
            [lambda layer=layer: self.call(layer, tuned) for layer in range(self.layers)]
        )


class WideCase(DecodeCase):
    """The launch for many rows over INT8 caches; what lies behind a sequence is no number."""

    def __init__(
        self, launcher: Launcher, shape: HeadShape, lengths: Sequence[int], **rest: Any
    ) -> None:
        super().__init__(launcher, shape, lengths, cache="int8", **rest)
        for row, length in enumerate(lengths):
            if length % BLOCK:
                block = int(self.cache.table[row, length // BLOCK])
                self.cache.scales[:, :, block, :, length % BLOCK :] = float("nan")
        self.row_numbers = torch.arange(len(lengths), dtype=torch.int32, device=CUDA)
        self.queries = torch.zeros(
            len(lengths), shape.num_heads * shape.head_dim, dtype=torch.bfloat16, device=CUDA
        )

    def call(self, layer: int = 0, tuned: Variant | None = None) -> None:
        assert tuned is None
        workspace = WideWorkspace(
            queries=self.queries.data_ptr(), row_numbers=self.row_numbers.data_ptr()
        )
        attention_decode_wide(
            self.launcher,
            self.inputs,
            self.shape,
            self.cache.layer(layer),
            self.cache.tables,
            workspace,
            self.output.buffer,
            rules=rules_of(self.window, self.sinks),
            splits=self.splits,
        )

    def rows_that_differ_alone(self) -> list[int]:
        """Return the rows whose bits are not those that they have without the others."""
        self.call()
        found = self.output.read().clone()
        inputs, rows, table = self.inputs, len(self.lengths), self.cache.tables
        wrong = []
        for row in range(rows):
            alone = self.parts[:, row : row + 1].contiguous()
            position, blocks = self.positions[row : row + 1].clone(), self.cache.table[row].clone()
            self.inputs = replace(
                inputs,
                qkv=replace(inputs.qkv, rows=1, values=alone.data_ptr()),
                positions=position.data_ptr(),
            )
            self.cache.tables = replace(table, address=blocks.data_ptr())
            self.output = make_output(1, found.shape[1], quantized=len(self.output.parts) > 1)
            self.call()
            if not torch.equal(self.output.read()[0], found[row]):
                wrong.append(row)
        return wrong


class PrefillCase:
    """One prefill attention of chunks (first position, rows), one a sequence."""

    def __init__(
        self,
        launcher: Launcher,
        shape: HeadShape,
        chunks: Sequence[tuple[int, int]],
        *,
        queries: int = PREFILL_QUERIES,
        cache: CacheDtype = "bf16",
        window: int = 0,
        sinks: bool = False,
    ) -> None:
        self.launcher, self.shape, self.window = launcher, shape, window
        self.sinks = torch.randn(shape.num_heads, device=CUDA) if sinks else None
        lengths = [first + count for first, count in chunks]
        self.cache = Cache(lengths, shape, 1, dtype=cache)
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
        seen = (first + i + 1 for first, count in chunks for i in range(count))
        pairs = sum(min(tokens, window or tokens) for tokens in seen)
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
            rules=rules_of(self.window, self.sinks),
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
            first = chunk.first_position
            expected = attended(query, cached, first, self.window, self.sinks)
            errors.append(relative_error(self.found[rows], expected))
        return max(errors)

    def microseconds(self, tuned: Variant | None = None) -> float:
        return graph_us([lambda: self.call(tuned)], least=4, replays=5)
