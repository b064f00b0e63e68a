"""Rotary table, and the heads of many rows into queries and the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.rope_store.triton.heads import (
    BLOCK_TOKENS,
    Stored,
    balance_heads,
    head_norm_factor,
    line_of,
    load_halves,
    rotate,
    turn_heads,
    write_halves,
)
from zse.kernels.triton.parts import (
    load_bias,
    sum_two_partials,
    to_bf16,
    wait_for_inputs,
)


@triton.jit
def rope_table(
    inverse_frequencies,
    table,
    num_positions,
    factor,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store cosines, then sines, of BLOCK positions. Program: (block of positions).

    ``tl.cos`` and ``tl.sin`` are the accurate ones of libdevice, with the long reduction of large
    angles; the angle itself is the float32 product that transformers takes.
    """
    wait_for_inputs(PDL)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, HALF_PAD)
    frequency = tl.load(inverse_frequencies + column, mask=column < HALF, other=0.0)
    angles = position.to(tl.float32)[:, None] * frequency[None, :]
    at = table + position.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
    mask = (position < num_positions)[:, None] & (column < HALF)[None, :]
    tl.store(at, tl.cos(angles) * factor, mask=mask)
    tl.store(at + HALF, tl.sin(angles) * factor, mask=mask)


@triton.jit
def any_rope_table(
    inverse_frequencies,
    table,
    num_positions,
    half,
    factor,
    HALF_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store cosines and sines of ``half`` frequencies, at most HALF_PAD; see ``rope_table``."""
    wait_for_inputs(PDL)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, HALF_PAD)
    frequency = tl.load(inverse_frequencies + column, mask=column < half, other=0.0)
    angles = position.to(tl.float32)[:, None] * frequency[None, :]
    at = table + position.to(tl.int64)[:, None] * (2 * half) + column[None, :]
    mask = (position < num_positions)[:, None] & (column < half)[None, :]
    tl.store(at, tl.cos(angles) * factor, mask=mask)
    tl.store(at + half, tl.sin(angles) * factor, mask=mask)


@triton.jit
def normalize(first, second, q_norm, k_norm, is_query, is_key, epsilon, HALF: tl.constexpr):
    """Apply the norm of queries or of keys to halves [H, W] of each head; values keep theirs."""
    pad: tl.constexpr = first.shape[1]
    factor = head_norm_factor(first, second, epsilon, 2 * HALF)
    q_first, q_second = load_halves(q_norm, HALF, pad)
    k_first, k_second = load_halves(k_norm, HALF, pad)
    rotated = (is_query | is_key)[:, None]
    weight = tl.where(is_query[:, None], q_first, k_first)
    first = tl.where(rotated, first * factor * weight, first)
    weight = tl.where(is_query[:, None], q_second, k_second)
    return first, tl.where(rotated, second * factor * weight, second)


@triton.jit
def store_queries(queries, first, second, mask, HALF: tl.constexpr, PLAIN: tl.constexpr):
    """Store both halves [H, W] of queries as bfloat16; ``queries`` [H, W] is where the first go."""
    tl.store(queries, to_bf16(first, PLAIN), mask=mask)
    tl.store(queries + HALF, to_bf16(second, PLAIN), mask=mask)


@triton.jit
def rope_store(
    qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, table_rows, tables,
    queries, keys, values, key_scales, value_scales,
    rows, splits, has_bias, has_factors, table_stride, num_heads, kv_heads, epsilon,
    HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, HEADS: tl.constexpr, HEAD_NORM: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Rotate some heads of one row; store queries, write keys and values to the cache.

    Program: (row, chunk of HEADS heads). Queries are stored rotated and not scaled.
    """
    wait_for_inputs(PDL)
    half: tl.constexpr = HEAD_DIM // 2
    row = tl.program_id(0).to(tl.int64)
    all_heads = num_heads + 2 * kv_heads
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF_PAD)
    inside = column < half
    mask = (head < all_heads)[:, None] & inside[None, :]
    offsets = head[:, None] * HEAD_DIM + column[None, :]
    line = qkv + row * all_heads * HEAD_DIM
    stride = rows.to(tl.int64) * all_heads * HEAD_DIM
    first, second = sum_two_partials(line, line + half, offsets, mask, splits, stride)
    first += load_bias(bias, offsets, mask, has_bias)
    second += load_bias(bias + half, offsets, mask, has_bias)

    is_query = head < num_heads
    is_key = (head >= num_heads) & (head < num_heads + kv_heads)
    if HEAD_NORM:
        first, second = normalize(first, second, q_norm, k_norm, is_query, is_key, epsilon, half)
    position = tl.load(positions + row)
    angles = cosines_sines + position.to(tl.int64) * HEAD_DIM + column
    cosines = tl.load(angles, mask=inside, other=1.0)[None, :]
    sines = tl.load(angles + half, mask=inside, other=0.0)[None, :]
    first_rotated, second_rotated = rotate(first, second, cosines, sines)
    owner = tl.where(is_query, head // (num_heads // kv_heads), head - num_heads)
    first_rotated, second_rotated = balance_heads(
        (first_rotated, second_rotated), key_factors, has_factors, owner, is_query, is_key,
        (column, column + half, mask, HEAD_DIM), keys.dtype.element_ty == tl.int8,
    )  # fmt: skip
    first_rotated, second_rotated = turn_heads(
        first_rotated, second_rotated, keys.dtype.element_ty == tl.uint8
    )
    q_at = queries + row * num_heads * HEAD_DIM + offsets
    store_queries(q_at, first_rotated, second_rotated, mask & is_query[:, None], half, PLAIN)

    table = tables + tl.load(table_rows + row).to(tl.int64) * table_stride
    block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
    kv_head = tl.where(is_key, head - num_heads, head - num_heads - kv_heads)
    lines = line_of(block, position, kv_head, kv_heads)
    k_mask = mask & is_key[:, None]
    cache = Stored(keys, key_scales)
    write_halves(cache, first_rotated, second_rotated, lines, k_mask, HEAD_DIM, PLAIN)
    v_mask = mask & (head >= num_heads + kv_heads)[:, None]
    cache = Stored(values, value_scales)
    write_halves(cache, first, second, lines, v_mask, HEAD_DIM, PLAIN)
