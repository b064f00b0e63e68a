"""What adapters add to the products of experts: each pair of a row and an expert on its own.

Pairs of one expert and one adapter are few even in prompts, so nothing is shared among them; a row
has the same bits whatever stands beside it. A program's line is a row of a tile, and one of its
slots.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.low_rank.triton.kernel import PIECE, matrix_of, rank_of, record_of
from zse.kernels.triton.parts import GROUP, wait_for_inputs


@triton.jit
def pair_of_line(tile_rows, tile_places, experts, line, slots, ROWS: tl.constexpr):
    """Return a line's row, its slot, its expert and its adapter's place, which is -1 for none."""
    row = tl.load(tile_rows + line // slots)
    place = tl.load(tile_places + line // slots // ROWS)
    place = tl.where(row >= 0, place, -1)
    slot = line % slots
    expert = tl.load(experts + row * slots + slot, mask=place >= 0, other=0)
    return row, slot, expert, place


@triton.jit
def shrink_pairs(
    inputs, scales, tile_rows, tile_places, memory, experts, products, first_record, columns,
    most_rank, slots, has_pairs, ROWS: tl.constexpr, RANKS: tl.constexpr, STEP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the input of each pair times the first matrix of its adapter for its expert.

    Program: (line, part).

    Operands:
        inputs: bfloat16 [rows, K], or of pairs if ``has_pairs``; or int8 with float32 ``scales``.
        experts: int32 [rows, slots].
        products: float32 [lines, parts * most_rank].
        The others as in ``shrink``; records of an expert follow those of the one before it.
    """
    wait_for_inputs(PDL)
    line = tl.program_id(0)
    part, parts = tl.program_id(1), tl.num_programs(1)
    row, slot, expert, place = pair_of_line(tile_rows, tile_places, experts, line, slots, ROWS)
    record = record_of(memory, place, first_record + expert * parts + part)
    rank = rank_of(record, place)
    down = matrix_of(memory, record, place)
    source = tl.where(has_pairs != 0, row * slots + slot, row).to(tl.int64)
    groups = tl.cdiv(columns, GROUP)
    for first in range(0, rank, RANKS):
        ranks = first + tl.arange(0, RANKS)
        total = tl.zeros((RANKS,), tl.float32)
        for start in range(0, columns, STEP):
            k = start + tl.arange(0, STEP)
            x = tl.load(inputs + source * columns + k, mask=k < columns, other=0.0).to(tl.float32)
            if inputs.dtype.element_ty == tl.int8:
                x *= tl.load(scales + source * groups + start // GROUP)
            inside = (ranks < rank)[:, None] & (k < columns)[None, :]
            at = down + ranks.to(tl.int64)[:, None] * columns + k[None, :]
            a = tl.load(at, mask=inside, other=0.0)
            total += tl.sum(a.to(tl.float32) * x[None, :], 1)
        at = products + (line.to(tl.int64) * parts + part) * most_rank + ranks
        tl.store(at, total, mask=ranks < rank)


@triton.jit
def expand_pairs(
    products, tile_rows, tile_places, memory, experts, pair_weights, starts, outputs, first_record,
    columns, most_rank, slots, row_lines, slot_lines, is_weighted, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, RANKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add what ``shrink_pairs`` left, times second matrix and scale, to each pair's product.

    Program: (line, columns of a part, part).

    Operands:
        pair_weights: float32 [rows, slots], which multiply what is added if it ``is_weighted``.
        outputs: float32 or bfloat16; a pair's line is ``row * row_lines + slot * slot_lines``.
        The others as in ``expand`` and ``shrink_pairs``.
    """
    wait_for_inputs(PDL)
    line = tl.program_id(0)
    part, parts = tl.program_id(2), tl.num_programs(2)
    row, slot, expert, place = pair_of_line(tile_rows, tile_places, experts, line, slots, ROWS)
    record = record_of(memory, place, first_record + expert * parts + part)
    rank = rank_of(record, place)
    up = matrix_of(memory, record + 1, place)
    begin = tl.load(starts + part) * PIECE
    end = tl.load(starts + part + 1) * PIECE
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < end - begin
    if (rank > 0) & (begin + tl.program_id(1) * COLUMNS < end):
        scale = tl.load(record + 3).to(tl.int32).to(tl.float32, bitcast=True)
        if is_weighted != 0:
            scale *= tl.load(pair_weights + row * slots + slot)
        total = tl.zeros((COLUMNS,), tl.float32)
        for first in range(0, rank, RANKS):
            ranks = first + tl.arange(0, RANKS)
            reduced = tl.load(products + (line.to(tl.int64) * parts + part) * most_rank + ranks,
                              mask=ranks < rank, other=0.0)  # fmt: skip
            b = tl.load(up + column.to(tl.int64)[:, None] * rank + ranks[None, :],
                        mask=inside[:, None] & (ranks < rank)[None, :], other=0.0)  # fmt: skip
            total += tl.sum(b.to(tl.float32) * reduced[None, :], 1)
        target = (row * row_lines + slot * slot_lines).to(tl.int64)
        at = outputs + target * columns + begin + column
        before = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, (before + total * scale).to(outputs.dtype.element_ty), mask=inside)
