"""Heads of families whose rows hold more, or less, than q, k and v, or whose heads turn in part."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.rope_store.triton.heads import (
    BLOCK_TOKENS,
    Stored,
    balance_heads,
    head_norm_factor,
    line_of,
    load_angles,
    load_pairs,
    pair_columns,
    rotate,
    turn_heads,
    write_halves,
)
from zse.kernels.rope_store.triton.kernel import store_queries
from zse.kernels.triton.parts import load_bias, sum_partials, wait_for_inputs


@triton.jit
def family_rope_store(
    qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, table_rows, tables,
    queries, keys, values, key_scales, value_scales,
    rows, splits, has_bias, has_factors, table_stride, num_heads, kv_heads,
    joined_heads, first_key, first_value, stores, rotary_half, norms_values,
    epsilon, value_epsilon,
    HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, HEADS: tl.constexpr, HEAD_NORM: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Rotate some heads of one row; store queries, write keys and values to the cache.

    Program: (row, chunk of HEADS heads): queries, then keys and values if the layer ``stores`` any.
    Queries and keys are stored in pairs, see ``pair_columns``: all that is asked of them is their
    products. Gates stay where they are.
    """
    wait_for_inputs(PDL)
    half: tl.constexpr = HEAD_DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF_PAD)
    inside = column < half
    is_query = head < num_heads
    is_key = (head >= num_heads) & (head < num_heads + kv_heads)
    is_value = head >= num_heads + kv_heads
    kv_head = tl.where(is_key, head - num_heads, head - num_heads - kv_heads)
    source = tl.where(is_query, head, kv_head + tl.where(is_key, first_key, first_value))
    all_heads = num_heads + tl.where(stores != 0, 2 * kv_heads, 0)
    mask = (head < all_heads)[:, None] & inside[None, :]

    pair_first, pair_second = pair_columns(column, rotary_half, HEAD_DIM)
    first_at = tl.where(is_value[:, None], column[None, :], pair_first[None, :])
    second_at = tl.where(is_value[:, None], column[None, :] + half, pair_second[None, :])
    line = qkv + row * joined_heads * HEAD_DIM
    stride = rows.to(tl.int64) * joined_heads * HEAD_DIM
    first_at += source[:, None] * HEAD_DIM
    second_at += source[:, None] * HEAD_DIM
    first = sum_partials(line, first_at, mask, splits, stride)
    second = sum_partials(line, second_at, mask, splits, stride)
    first += load_bias(bias, first_at, mask, has_bias)
    second += load_bias(bias, second_at, mask, has_bias)

    if HEAD_NORM:
        factor = head_norm_factor(first, second, epsilon, HEAD_DIM)
        q_first, q_second = load_pairs(q_norm, rotary_half, HEAD_DIM, HALF_PAD)
        k_first, k_second = load_pairs(k_norm, rotary_half, HEAD_DIM, HALF_PAD)
        weight = tl.where(is_query[:, None], q_first, k_first)
        first = tl.where(is_value[:, None], first, first * factor * weight)
        weight = tl.where(is_query[:, None], q_second, k_second)
        second = tl.where(is_value[:, None], second, second * factor * weight)
    if norms_values != 0:
        factor = head_norm_factor(first, second, value_epsilon, HEAD_DIM)
        first = tl.where(is_value[:, None], first * factor, first)
        second = tl.where(is_value[:, None], second * factor, second)

    position = tl.load(positions + row)
    cosines, sines = load_angles(cosines_sines, position, column, rotary_half)
    first_rotated, second_rotated = rotate(first, second, cosines, sines)
    owner = tl.where(is_query, head // (num_heads // kv_heads), kv_head)
    first_rotated, second_rotated = balance_heads(
        (first_rotated, second_rotated), key_factors, has_factors, owner, is_query, is_key,
        (pair_first, pair_second, mask, HEAD_DIM), keys.dtype.element_ty == tl.int8,
    )  # fmt: skip
    first_rotated, second_rotated = turn_heads(
        first_rotated, second_rotated, keys.dtype.element_ty == tl.uint8
    )
    q_at = queries + row * num_heads * HEAD_DIM + head[:, None] * HEAD_DIM + column[None, :]
    store_queries(q_at, first_rotated, second_rotated, mask & is_query[:, None], half, PLAIN)

    table = tables + tl.load(table_rows + row).to(tl.int64) * table_stride
    block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
    lines = line_of(block, position, kv_head, kv_heads)
    cache = Stored(keys, key_scales)
    k_mask = mask & is_key[:, None]
    write_halves(cache, first_rotated, second_rotated, lines, k_mask, HEAD_DIM, PLAIN)
    cache = Stored(values, value_scales)
    write_halves(cache, first, second, lines, mask & is_value[:, None], HEAD_DIM, PLAIN)
