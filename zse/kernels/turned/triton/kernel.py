"""RMSNorm and silu(gate) * up whose rows are turned and rounded on their way out.

A row is held as groups of 128 columns, so that one small product turns all of them. A program takes
row after row: the signs take longer to make than to use.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import dot_16
from zse.kernels.linear.triton.rotate import signs
from zse.kernels.triton.parts import (
    GROUP,
    round_to_even,
    sum_partials,
    to_bf16,
    wait_for_inputs,
)
from zse.kernels.turned.variants import GATES_EXTRA

PIECE = tl.constexpr(GATES_EXTRA)
"""Columns of a group that are turned before the group is."""
STAGES = tl.constexpr((GROUP.value // GATES_EXTRA).bit_length() - 1)


@triton.jit
def turned(values, sign, PLAIN: tl.constexpr):
    """Return groups of a row, float32 [G, 128], turned, and the largest magnitude of all."""
    found = dot_16(to_bf16(values, PLAIN), sign, tl.zeros(values.shape, tl.float32), PLAIN)
    return found, tl.max(tl.max(tl.abs(found), 1), 0)


@triton.jit
def store_codes(turned_values, most, line, columns, inside):
    """Write groups of a row whose largest magnitude is ``most``: int8 in steps of its scale."""
    inverse = 127.0 / tl.where(most > 0.0, most, 1.0)
    tl.store(line + columns, round_to_even(turned_values * inverse).to(tl.int8), mask=inside)


@triton.jit
def columns_of(first: tl.constexpr, GROUPS: tl.constexpr):
    """Return the columns int32 [GROUPS, 128] of some groups of a row."""
    groups = first + tl.arange(0, GROUPS)
    return groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def gated(line, width, columns):
    """Return silu(gate) * up of some columns of a row, float32; zeros behind its end."""
    inside = columns < width
    gate = tl.load(line + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(line + width + columns, mask=inside, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(tl.maximum(gate, -80.0)) * up


@triton.jit
def turned_norm(
    residual, added, norm, outputs, scales, rows, hidden, added_rows, splits, epsilon,
    GROUPS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Add pending sums to rows of the residual stream, store them, and their RMSNorm turned.

    Operands:
        residual: float32 [rows, hidden], changed in place.
        added: float32 [splits, added_rows, hidden].
        norm: float32 [hidden].
        outputs: int8 [rows, hidden].
        scales: float32 [rows].
    """
    columns = columns_of(0, GROUPS)
    inside = columns < hidden
    sign = signs(0, GROUP, GROUP)
    weight = tl.load(norm + columns, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    stride = added_rows.to(tl.int64) * hidden
    length = hidden.to(tl.int64)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        stream = residual + row * length
        values = tl.load(stream + columns, mask=inside, other=0.0)
        if splits > 0:
            values += sum_partials(added + row * length, columns, inside, splits, stride)
            tl.store(stream + columns, values, mask=inside)
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
        values = values * tl.rsqrt(mean + epsilon) * weight
        found, most = turned(values, sign, PLAIN)
        tl.store(scales + row, most / (127.0 * GROUP))
        store_codes(found, most, outputs + row * length, columns, inside)


@triton.jit
def turned_silu(
    inputs, outputs, scales, rows, width,
    GROUPS: tl.constexpr, REST: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Store silu(gate) * up of rows of up to GROUPS + REST groups, turned.

    Operands:
        inputs: bfloat16 [rows, 2 * width], gate columns, then up columns.
        outputs: int8 [rows, width].
        scales: float32 [rows]; they make up for products that are 128 times as large.
    """
    wait_for_inputs(PDL)
    columns = columns_of(0, GROUPS)
    sign = signs(0, GROUP, GROUP)
    length = width.to(tl.int64)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        line, target = inputs + row * 2 * length, outputs + row * length
        found, most = turned(gated(line, width, columns), sign, PLAIN)
        if REST:
            others = columns_of(GROUPS, REST)
            rest, most_of_rest = turned(gated(line, width, others), sign, PLAIN)
            most = tl.maximum(most, most_of_rest)
            store_codes(rest, most, target, others, others < width)
        tl.store(scales + row, most / (127.0 * GROUP))
        store_codes(found, most, target, columns, columns < width)


@triton.jit
def turned_pieces(line, inside):
    """Return groups, of which each PIECE columns are turned, turned as a whole: by their pieces.

    ``line`` [G, PIECE] are addresses of the first pieces; the result is a tuple of float32.
    """
    pieces: tl.tuple = ()
    for piece in tl.static_range(GROUP // PIECE):
        values = tl.load(line + piece * PIECE, mask=inside, other=0.0)
        pieces += (values.to(tl.float32),)
    for stage in tl.static_range(STAGES):
        made: tl.tuple = ()
        for piece in tl.static_range(GROUP // PIECE):
            other = pieces[piece ^ (1 << stage)]
            made += (other - pieces[piece] if piece & (1 << stage) else pieces[piece] + other,)
        pieces = made
    return pieces


@triton.jit
def round_gates(
    inputs, maxima, outputs, scales, width, turned_columns,
    GROUPS: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Round a turned row to int8 by the largest of its maxima. Program: (row, part of it).

    Of up to REST groups behind the first ones each PIECE columns are turned by themselves. All
    programs of a row turn the rest, to find the largest, and the first one writes it.

    Operands:
        inputs: bfloat16 [rows, width].
        maxima: float32 [rows, width / 128]; up to GROUPS a row.
        outputs: int8 [rows, width].
        scales: float32 [rows]; they make up for products that are 128 times as large.
        turned_columns: Columns that are turned, and have maxima.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line, target = inputs + row * width, outputs + row * width
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(line + column, mask=column < turned_columns, other=0.0).to(tl.float32)
    groups = width // GROUP
    every = tl.arange(0, GROUPS)
    held = every < turned_columns // GROUP
    most = tl.max(tl.load(maxima + row * groups + every, mask=held, other=0.0), 0)
    if REST:
        beside = turned_columns + tl.arange(0, REST)[:, None] * GROUP + tl.arange(0, PIECE)[None, :]
        rest = turned_pieces(line + beside, beside < width)
        largest = tl.abs(rest[0])
        for piece in tl.static_range(1, GROUP // PIECE):
            largest = tl.maximum(largest, tl.abs(rest[piece]))
        most = tl.maximum(most, tl.max(tl.max(largest, 1), 0))
        if part == 0:
            for piece in tl.static_range(GROUP // PIECE):
                store_codes(rest[piece], most, target + piece * PIECE, beside, beside < width)
    if part == 0:
        tl.store(scales + row, most / (127.0 * GROUP))
    store_codes(values, most, target, column, column < turned_columns)
