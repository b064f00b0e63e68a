"""Parts of a softmax that several programs made, joined and stored."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.attention.triton.family import apply_gates, count_sinks
from zse.kernels.attention.triton.parts import NOTHING, Softmax
from zse.kernels.layout import MOST_GATED_DIM
from zse.kernels.triton.parts import GROUP, store_activations, to_bf16

MOST_GATED = tl.constexpr(MOST_GATED_DIM)


class Parts(NamedTuple):
    """Addresses of what programs leave for the one that joins it."""

    attended: tl.tensor
    """float32 [rows * kv_heads, splits, group, D]."""
    stats: tl.tensor
    """float32 [rows * kv_heads, splits, 2, group]: largest scores, totals."""
    counters: tl.tensor
    """int32 [rows * kv_heads]: programs that are done; zero before and after."""


class Output(NamedTuple):
    """Addresses of the attention's output."""

    elements: tl.tensor
    """[rows, num_heads * D], int8 or bfloat16."""
    scales: tl.tensor
    """float32 [rows, num_heads * D / 128]; used for int8."""
    sums: tl.tensor
    """Likewise."""


@triton.jit
def store_part(softmax, parts, part, group, HEAD_DIM: tl.constexpr):
    """Leave one program's part of a softmax for the program that joins them.

    Args:
        softmax: Of [H] queries, of which the first ``group`` exist.
        parts: Where to.
        part: Index of the program among all.
        group: Query heads of the program.
        HEAD_DIM: D.
    """
    head = tl.arange(0, softmax.attended.shape[0])
    wide = tl.arange(0, softmax.attended.shape[1])[None, :]
    exists = head < group
    at = parts.attended + (part * group + head)[:, None] * HEAD_DIM + wide
    tl.store(at, softmax.attended, mask=exists[:, None] & (wide < HEAD_DIM))
    tl.store(parts.stats + part * 2 * group + head, softmax.largest, mask=exists)
    tl.store(parts.stats + part * 2 * group + group + head, softmax.total, mask=exists)


@triton.jit
def combine(
    parts,
    base,
    active,
    group,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return the ``Softmax`` [ROWS] of one row's key-value head, joined in the order of the splits.

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
        at = parts.stats + part * 2 * group + head[None, :]
        maxima = tl.load(at, mask=mask, other=NOTHING, cache_modifier=".cg")
        totals = tl.load(at + group, mask=mask, other=0.0, cache_modifier=".cg")
        line = tl.expand_dims((part * group + head[None, :]) * HEAD_DIM, 2)
        wide = tl.expand_dims(mask, 2) & (column < HEAD_DIM)[None, None, :]
        at = parts.attended + line + column[None, None, :]
        values = tl.load(at, mask=wide, other=0.0, cache_modifier=".cg")
        new_largest = tl.maximum(largest, tl.max(maxima, axis=0))
        weights = tl.exp2(maxima - new_largest[None, :])
        fade = tl.exp2(largest - new_largest)
        attended = attended * fade[:, None] + tl.sum(values * tl.expand_dims(weights, 2), axis=0)
        total = total * fade + tl.sum(totals * weights, axis=0)
        largest = new_largest
    return Softmax(largest, tl.where(head < group, total, 1.0), attended)


@triton.jit
def store_output(
    softmax,
    output,
    row,
    heads,
    family,
    HEAD_DIM: tl.constexpr,
    FAMILY: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Divide by the softmax's total and store the heads of one key-value head.

    Args:
        softmax: Of [H] queries, of which the first ``heads.group`` exist.
        output: Where to, int8 or bfloat16.
        row: int64.
        heads: ``Heads`` of the program.
        family: ``Family``, looked at where FAMILY says so.
        HEAD_DIM: D.
        FAMILY: Whether there may be sinks or gates.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    rows: tl.constexpr = softmax.attended.shape[0]
    first_head = heads.kv_head * heads.group
    if FAMILY:
        index = tl.arange(0, rows)
        exists = index < heads.group
        softmax = count_sinks(softmax, family.sinks, family.has_sinks, first_head + index, exists)
    values = softmax.attended / softmax.total[:, None]
    if FAMILY and HEAD_DIM <= MOST_GATED:
        inside = tl.arange(0, softmax.attended.shape[1]) < HEAD_DIM
        there = exists[:, None] & inside[None, :]
        values = apply_gates(values, family, row, first_head, heads.num_heads, there, HEAD_DIM)
    first_column = first_head * HEAD_DIM
    line = output.elements + row * heads.num_heads * HEAD_DIM + first_column
    if output.elements.dtype.element_ty == tl.int8:
        count: tl.constexpr = rows * HEAD_DIM // GROUP
        tile = tl.reshape(values, (count, GROUP))
        groups = tl.arange(0, count)
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        first_group = row * (heads.num_heads * HEAD_DIM // GROUP) + first_column // GROUP
        store_activations(
            tile,
            line,
            output.scales + first_group,
            output.sums + first_group,
            columns,
            groups,
            columns < heads.group * HEAD_DIM,
            groups < heads.group * HEAD_DIM // GROUP,
        )
    else:
        head = tl.arange(0, rows)[:, None]
        column = tl.arange(0, softmax.attended.shape[1])[None, :]
        mask = (head < heads.group) & (column < HEAD_DIM)
        tl.store(line + head * HEAD_DIM + column, to_bf16(values, PLAIN), mask=mask)


@triton.jit
def finish(
    softmax,
    output,
    parts,
    row,
    heads,
    split,
    splits,
    active,
    family,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FAMILY: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Store the output if nobody else works on it; else leave a part, and the last one joins them.

    Args:
        softmax: What this program made.
        output: Where the output goes.
        parts: Where parts go. The last program sets its counter back to zero.
        row: int64.
        heads: ``Heads`` of the program.
        split: This program among those of the row's key-value head.
        splits: How many there are at most.
        active: How many of them have something to do.
        family: See ``store_output``.
        ROWS: Heads, not below ``heads.group``, that a join holds.
        AT_ONCE: Parts that it reads together.
        HEAD_DIM: D.
        FAMILY: See ``store_output``.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    if active == 1:
        store_output(softmax, output, row, heads, family, HEAD_DIM, FAMILY, PLAIN)
    else:
        pair = row * heads.kv_heads + heads.kv_head
        base = pair * splits
        store_part(softmax, parts, base + split, heads.group, HEAD_DIM)
        tl.debug_barrier()  # every thread has stored before one of them says so
        arrived = tl.atomic_add(parts.counters + pair, 1, sem="acq_rel")
        if arrived == active - 1:
            width: tl.constexpr = softmax.attended.shape[1]
            joined = combine(parts, base, active, heads.group, ROWS, AT_ONCE, HEAD_DIM, width)
            store_output(joined, output, row, heads, family, HEAD_DIM, FAMILY, PLAIN)
            tl.store(parts.counters + pair, 0)
