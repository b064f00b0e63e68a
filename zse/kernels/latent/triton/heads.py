"""Products with the two matrices of each head: what makes its keys, and what makes its values.

They lie behind each other in ``expansion``, [heads, key_dim + value_dim, rank], in 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton.parts import dot
from zse.kernels.rope_store.triton.heads import rotate
from zse.kernels.triton.parts import (
    load_bias,
    store_activations,
    sum_partials,
    to_bf16,
    wait_for_inputs,
)


@triton.jit
def like(values, weights, PLAIN: tl.constexpr):
    """Return float32 values in the type of some weights, of 16 bits."""
    return to_bf16(values, PLAIN) if weights.dtype == tl.bfloat16 else values.to(weights.dtype)


@triton.jit
def wide_queries(
    own, bias, expansion, cosines_sines, positions, queries,
    rows, split_rows, splits, has_bias, own_columns, num_heads,
    RANK: tl.constexpr, TURNING: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Store queries as wide as what is kept, bfloat16. Program: (rows, head, part of the columns).

    The last part are the columns that turn; the others are products with what makes keys. ``own``
    are summands, float32 [splits, split_rows, own_columns], which heads' queries begin.
    """
    wait_for_inputs(PDL)
    kept: tl.constexpr = RANK + TURNING
    head = tl.program_id(1)
    part = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    line = row.to(tl.int64)[:, None] * own_columns + head * (KEY_DIM + TURNING)
    column = head * (KEY_DIM + TURNING)
    stride = split_rows.to(tl.int64) * own_columns
    target = queries + (row.to(tl.int64)[:, None] * num_heads + head) * kept
    if part < RANK // COLUMNS:
        key = tl.arange(0, KEY_DIM)
        there = inside & (key >= 0)[None, :]
        values = sum_partials(own, line + key[None, :], there, splits, stride)
        values += load_bias(bias, column + key[None, :], there, has_bias)
        made = part * COLUMNS + tl.arange(0, COLUMNS)
        source = (head * (KEY_DIM + VALUE_DIM) + key).to(tl.int64)[:, None] * RANK
        weights = tl.load(expansion + source + made[None, :])
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        product = dot(like(values, weights, PLAIN), weights, product, PLAIN)
        tl.store(
            target + made[None, :], to_bf16(product, PLAIN), mask=inside & (made >= 0)[None, :]
        )
    else:
        half: tl.constexpr = TURNING // 2
        pair = tl.arange(0, half)[None, :]
        turns = inside & (pair >= 0)
        first = sum_partials(own, line + KEY_DIM + pair, turns, splits, stride)
        second = sum_partials(own, line + KEY_DIM + half + pair, turns, splits, stride)
        first += load_bias(bias, column + KEY_DIM + pair, turns, has_bias)
        second += load_bias(bias, column + KEY_DIM + half + pair, turns, has_bias)
        position = tl.load(positions + row, mask=row < rows, other=0).to(tl.int64)
        angles = cosines_sines + position[:, None] * TURNING + pair
        cosines, sines = tl.load(angles), tl.load(angles + half)
        first, second = rotate(first, second, cosines, sines)
        tl.store(target + RANK + pair, to_bf16(first, PLAIN), mask=turns)
        tl.store(target + RANK + half + pair, to_bf16(second, PLAIN), mask=turns)


@triton.jit
def latent_values(
    attended, expansion, outputs, scales, sums, rows, num_heads,
    RANK: tl.constexpr, TURNING: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Store values of sums of latents, which lie where queries did. Program: (rows, head).

    A head's value is one group of 8-bit activations.
    """
    wait_for_inputs(PDL)
    head = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = row < rows
    value = tl.arange(0, VALUE_DIM)
    source = attended + (row * num_heads + head)[:, None] * (RANK + TURNING)
    matrix = (head * (KEY_DIM + VALUE_DIM) + KEY_DIM + value).to(tl.int64)[:, None] * RANK
    total = tl.zeros((ROWS, VALUE_DIM), tl.float32)
    for first in tl.range(0, RANK, COLUMNS):
        column = (first + tl.arange(0, COLUMNS))[None, :]
        weights = tl.load(expansion + matrix + column)
        latents = tl.load(source + column, mask=inside[:, None] & (column >= 0), other=0.0)
        latents = like(latents.to(tl.float32), weights, PLAIN)
        total = dot(latents, tl.trans(weights), total, PLAIN)
    group = row * num_heads + head
    columns = group[:, None] * VALUE_DIM + value[None, :]
    store_activations(
        total, outputs, scales, sums, columns, group, inside[:, None] & (columns >= 0), inside
    )
