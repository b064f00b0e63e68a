"""What adapters add to a product, in two kernels, for tiles of rows that have one adapter each.

A tile names its adapter by its place, -1 for none, which is an input of the step: a captured step
stays right when adapters come and go. The order of sums depends on the matrix alone, so a row has
the same bits whatever stands beside it. What no kernel writes, tiles and adapters, is read before
the kernels in front have ended.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import dot_16, prefetch
from zse.kernels.low_rank import variants as layout
from zse.kernels.triton.parts import GROUP, sum_partials, to_bf16

PIECE = tl.constexpr(layout.PIECE)
RECORD_NUMBERS = tl.constexpr(layout.RECORD_NUMBERS)
RECORDS_A_PLACE = tl.constexpr(layout.PLACE_BYTES // 8)


@triton.jit
def record_of(memory, place, number):
    """Return the address of an adapter's record."""
    return memory + place.to(tl.int64) * RECORDS_A_PLACE + number * RECORD_NUMBERS


@triton.jit
def matrix_of(memory, number, place):
    """Return the address of the matrix whose start a record's number says."""
    start = tl.load(number, mask=place >= 0, other=0) * PIECE
    return memory.to(tl.pointer_type(tl.bfloat16), bitcast=True) + start


@triton.jit
def rank_of(record, place):
    """Return the rank of an adapter; 0 where a tile has none."""
    rank = tl.load(record + 2, mask=place >= 0, other=0)
    return rank.to(tl.int32) * PIECE


@triton.jit
def shrink(
    inputs, scales, tile_rows, tile_places, memory, products, first_record, columns, chunk,
    most_rank, ROWS: tl.constexpr, RANKS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Write the inputs of a tile's rows times the first matrix of their adapter, in parts of K.

    Program: (tile, ranks of all parts of the matrix, chunk of K).

    Operands:
        inputs: bfloat16 [rows, K], or int8 with float32 ``scales`` [rows, groups].
        tile_rows: int32 [tiles, ROWS], -1 behind the last row of a tile.
        tile_places: int32 [tiles].
        memory: Adapters with their records, see ``variants.RECORD_NUMBERS``.
        products: float32 [splits, tiles, ROWS, parts * most_rank].
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(0)
    place = tl.load(tile_places + tile)
    row = tl.load(tile_rows + tile * ROWS + tl.arange(0, ROWS))
    blocks = most_rank // RANKS
    part = tl.program_id(1) // blocks
    ranks = tl.program_id(1) % blocks * RANKS + tl.arange(0, RANKS)
    record = record_of(memory, place, first_record + part)
    rank = rank_of(record, place)
    inside = ranks < rank
    down = matrix_of(memory, record, place) + ranks.to(tl.int64) * columns
    begin = tl.program_id(2) * chunk
    end = tl.minimum(begin + chunk, columns)
    if PDL:
        prefetch(down + begin, tl.where(inside, 2 * (end - begin), 0))
        tl.extra.cuda.gdc_wait()
    if tl.program_id(1) % blocks * RANKS < rank:
        held = tl.maximum(row, 0).to(tl.int64)
        groups = tl.cdiv(columns, GROUP)
        total = tl.zeros((ROWS, RANKS), tl.float32)
        for start in range(begin, end, STEP):
            k = start + tl.arange(0, STEP)
            x = tl.load(inputs + held[:, None] * columns + k[None, :], mask=(k < columns)[None, :],
                        other=0.0)  # fmt: skip
            a = tl.load(down[:, None] + k[None, :], mask=inside[:, None] & (k < columns)[None, :],
                        other=0.0)  # fmt: skip
            if inputs.dtype.element_ty == tl.int8:
                codes = x.to(tl.float32).to(tl.bfloat16)
                none = tl.zeros((ROWS, RANKS), tl.float32)
                scale = tl.load(scales + held * groups + start // GROUP)
                total += dot_16(codes, tl.trans(a), none, PLAIN) * scale[:, None]
            else:
                total = dot_16(x, tl.trans(a), total, PLAIN)
        width = tl.num_programs(1) * RANKS
        line = (tl.program_id(2) * tl.num_programs(0) + tile) * ROWS + tl.arange(0, ROWS)
        at = products + line.to(tl.int64)[:, None] * width + part * most_rank + ranks[None, :]
        tl.store(at, total, mask=inside[None, :] & (row >= 0)[:, None])


@triton.jit
def up_tile(up, place_of_column, rank, first, inside, RANKS: tl.constexpr):
    """Return some ranks of some rows of the second matrix, bfloat16 [COLUMNS, RANKS]."""
    ranks = first + tl.arange(0, RANKS)
    at = up + place_of_column.to(tl.int64)[:, None] * rank + ranks[None, :]
    return tl.load(at, mask=inside[:, None] & (ranks < rank)[None, :], other=0.0)


@triton.jit
def product_tile(lines, rank, first, row, splits, stride, RANKS: tl.constexpr, PLAIN: tl.constexpr):
    """Return what ``shrink`` left for some ranks, bfloat16 [ROWS, RANKS]."""
    ranks = first + tl.arange(0, RANKS)
    kept = (ranks < rank)[None, :] & (row >= 0)[:, None]
    offsets = tl.zeros(row.shape, tl.int32)[:, None] + ranks[None, :]
    return to_bf16(sum_partials(lines[:, None], offsets, kept, splits, stride), PLAIN)


@triton.jit
def expand(
    products, tile_rows, tile_places, memory, starts, outputs, first_record, columns, splits,
    most_rank, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr, PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Add what ``shrink`` left, times the second matrix and the scale, to a tile's rows.

    Program: (tile, columns of a part, part).

    Operands:
        products: float32 [splits, tiles, ROWS, parts * most_rank].
        starts: int32 [parts + 1], the columns at which the parts begin, in pieces.
        outputs: float32 or bfloat16 [rows, columns].
        The others as in ``shrink``.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(0)
    part = tl.program_id(2)
    place = tl.load(tile_places + tile)
    row = tl.load(tile_rows + tile * ROWS + tl.arange(0, ROWS))
    begin = tl.load(starts + part) * PIECE
    end = tl.load(starts + part + 1) * PIECE
    record = record_of(memory, place, first_record + part)
    rank = rank_of(record, place)
    up = matrix_of(memory, record + 1, place)
    scale = tl.load(record + 3, mask=place >= 0, other=0).to(tl.int32).to(tl.float32, bitcast=True)
    place_of_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = place_of_column < end - begin
    b = up_tile(up, place_of_column, rank, 0, inside, RANKS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if (rank > 0) & (begin + tl.program_id(1) * COLUMNS < end):
        width = tl.num_programs(2) * most_rank
        lines = (
            products + (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64) * width + part * most_rank
        )
        stride = tl.num_programs(0).to(tl.int64) * ROWS * width
        column = begin + place_of_column
        at = outputs + tl.maximum(row, 0).to(tl.int64)[:, None] * columns + column[None, :]
        stored = (row >= 0)[:, None] & inside[None, :]
        before = tl.load(at, mask=stored, other=0.0).to(tl.float32)
        product = product_tile(lines, rank, 0, row, splits, stride, RANKS, PLAIN)
        total = dot_16(product, tl.trans(b), tl.zeros((ROWS, COLUMNS), tl.float32), PLAIN)
        for first in range(RANKS, rank, RANKS):
            b = up_tile(up, place_of_column, rank, first, inside, RANKS)
            product = product_tile(lines, rank, first, row, splits, stride, RANKS, PLAIN)
            total = dot_16(product, tl.trans(b), total, PLAIN)
        tl.store(at, (before + total * scale).to(outputs.dtype.element_ty), mask=stored)
