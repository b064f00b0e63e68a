"""Parts of a softmax that several programs made, joined and stored."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton_parts import NOTHING
from zse.kernels.norm.triton_parts import GROUP, store_activations, to_bf16


@triton.jit
def store_part(
    largest,
    total,
    attended,
    partials,
    stats,
    part,
    group,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Leave one program's part of a softmax for the program that joins them."""
    head = tl.arange(0, HEADS)
    wide = tl.arange(0, WIDTH)[None, :]
    exists = head < group
    at = partials + (part * group + head)[:, None] * HEAD_DIM + wide
    tl.store(at, attended, mask=exists[:, None] & (wide < HEAD_DIM))
    tl.store(stats + part * 2 * group + head, largest, mask=exists)
    tl.store(stats + part * 2 * group + group + head, total, mask=exists)


@triton.jit
def combine(
    partials,
    stats,
    base,
    active,
    group,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Join the parts of one row's key-value head in the order of the splits.

    The parts were written by other programs during this launch: they are read past the first-level
    cache. AT_ONCE parts are in flight together.
    """
    head = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    largest = tl.full((ROWS,), NOTHING, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    attended = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, active, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        part = (base + split)[:, None]
        mask = (split < active)[:, None] & (head < group)[None, :]
        at = stats + part * 2 * group + head[None, :]
        maxima = tl.load(at, mask=mask, other=NOTHING, cache_modifier=".cg")
        totals = tl.load(at + group, mask=mask, other=0.0, cache_modifier=".cg")
        line = tl.expand_dims((part * group + head[None, :]) * HEAD_DIM, 2)
        wide = tl.expand_dims(mask, 2) & (column < HEAD_DIM)[None, None, :]
        parts = tl.load(
            partials + line + column[None, None, :], mask=wide, other=0.0, cache_modifier=".cg"
        )
        new_largest = tl.maximum(largest, tl.max(maxima, axis=0))
        weights = tl.exp2(maxima - new_largest[None, :])
        fade = tl.exp2(largest - new_largest)
        attended = attended * fade[:, None] + tl.sum(parts * tl.expand_dims(weights, 2), axis=0)
        total = total * fade + tl.sum(totals * weights, axis=0)
        largest = new_largest
    return attended, tl.where(head < group, total, 1.0)


@triton.jit
def store_output(
    attended,
    total,
    outputs,
    scales,
    sums,
    row,
    kv_head,
    group,
    num_heads,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Divide by the softmax's total and store the heads of one key-value head.

    Args:
        attended: float32 [ROWS, WIDTH].
        total: float32 [ROWS].
        outputs: Address of [rows, num_heads * D], int8 or bfloat16.
        scales: Address of [rows, num_heads * D / 128]; used for int8.
        sums: Likewise.
        row: int64.
        kv_head: Which of the key-value heads.
        group: Heads that share it; the first ``group`` of ROWS exist.
        num_heads: Query heads.
        ROWS: Heads in the tile.
        HEAD_DIM: D.
        WIDTH: D padded to a power of two.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    values = attended / total[:, None]
    first_column = kv_head * group * HEAD_DIM
    line = outputs + row * num_heads * HEAD_DIM + first_column
    if outputs.dtype.element_ty == tl.int8:
        count: tl.constexpr = ROWS * HEAD_DIM // GROUP
        tile = tl.reshape(values, (count, GROUP))
        groups = tl.arange(0, count)
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        first_group = row * (num_heads * HEAD_DIM // GROUP) + first_column // GROUP
        store_activations(
            tile,
            line,
            scales + first_group,
            sums + first_group,
            columns,
            groups,
            columns < group * HEAD_DIM,
            groups < group * HEAD_DIM // GROUP,
        )
    else:
        head = tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, WIDTH)[None, :]
        mask = (head < group) & (column < HEAD_DIM)
        tl.store(line + head * HEAD_DIM + column, to_bf16(values, PLAIN), mask=mask)
