"""Rotary table, and the heads of many rows into queries and the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton_parts import sum_two_partials, to_bf16
from zse.kernels.rope_store.triton_heads import (
    BLOCK_TOKENS,
    encode,
    head_norm_factor,
    load_bias,
    rotate,
    write_half,
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
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, HALF_PAD)
    frequency = tl.load(inverse_frequencies + column, mask=column < HALF, other=0.0)
    angles = position.to(tl.float32)[:, None] * frequency[None, :]
    at = table + position.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
    mask = (position < num_positions)[:, None] & (column < HALF)[None, :]
    tl.store(at, tl.cos(angles) * factor, mask=mask)
    tl.store(at + HALF, tl.sin(angles) * factor, mask=mask)


@triton.jit
def normalize(first, second, q_norm, k_norm, is_query, is_key, column, inside, epsilon, HALF):
    """Apply the norm of queries or of keys to the halves of each head; values keep theirs."""
    factor = head_norm_factor(first, second, epsilon, 2 * HALF)
    q_first = tl.load(q_norm + column, mask=inside, other=0.0)[None, :]
    q_second = tl.load(q_norm + HALF + column, mask=inside, other=0.0)[None, :]
    k_first = tl.load(k_norm + column, mask=inside, other=0.0)[None, :]
    k_second = tl.load(k_norm + HALF + column, mask=inside, other=0.0)[None, :]
    rotated = (is_query | is_key)[:, None]
    weight = tl.where(is_query[:, None], q_first, k_first)
    first = tl.where(rotated, first * factor * weight, first)
    weight = tl.where(is_query[:, None], q_second, k_second)
    return first, tl.where(rotated, second * factor * weight, second)


@triton.jit
def rope_store(
    qkv,
    bias,
    q_norm,
    k_norm,
    cosines_sines,
    positions,
    table_rows,
    tables,
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    rows,
    splits,
    has_bias,
    table_stride,
    num_heads,
    kv_heads,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Rotate some heads of one row; store queries, write keys and values to the cache.

    Program: (row, chunk of HEADS heads). Queries are stored rotated and not scaled.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    half: tl.constexpr = HEAD_DIM // 2
    quantized: tl.constexpr = keys.dtype.element_ty == tl.int8
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
        first, second = normalize(
            first, second, q_norm, k_norm, is_query, is_key, column, inside, epsilon, half
        )
    position = tl.load(positions + row)
    angles = cosines_sines + position.to(tl.int64) * HEAD_DIM + column
    cosines = tl.load(angles, mask=inside, other=1.0)[None, :]
    sines = tl.load(angles + half, mask=inside, other=0.0)[None, :]
    first_rotated, second_rotated = rotate(first, second, cosines, sines)

    q_at = queries + row * num_heads * HEAD_DIM + offsets
    q_mask = mask & is_query[:, None]
    tl.store(q_at, to_bf16(first_rotated, PLAIN), mask=q_mask)
    tl.store(q_at + half, to_bf16(second_rotated, PLAIN), mask=q_mask)

    entry = tables + tl.load(table_rows + row).to(tl.int64) * table_stride
    block = tl.load(entry + position // BLOCK_TOKENS).to(tl.int64)
    kv_head = tl.where(is_key, head - num_heads, head - num_heads - kv_heads)
    lines = (block * kv_heads + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS
    columns = column[None, :]
    k_mask = mask & is_key[:, None]
    stored, scales, _ = encode(first_rotated, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, k_mask, 0, HEAD_DIM, quantized)
    stored, scales, _ = encode(second_rotated, quantized, PLAIN)
    write_half(keys, key_scales, stored, scales, lines, columns, k_mask, half, HEAD_DIM, quantized)
    v_mask = mask & (head >= num_heads + kv_heads)[:, None]
    stored, scales, _ = encode(first, quantized, PLAIN)
    write_half(values, value_scales, stored, scales, lines, columns, v_mask, 0, HEAD_DIM, quantized)
    stored, scales, _ = encode(second, quantized, PLAIN)
    write_half(
        values, value_scales, stored, scales, lines, columns, v_mask, half, HEAD_DIM, quantized
    )
