"""Attention of one new token a row over the paged cache, split along the sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton_join import combine, store_output, store_part
from zse.kernels.attention.triton_parts import LOG2_E, NOTHING, cache_lines, cap, dot, load_cached
from zse.kernels.attention.triton_token import load_halves, load_query, write_new_token
from zse.kernels.norm.triton_parts import to_bf16
from zse.kernels.rope_store.triton_heads import BLOCK_TOKENS, load_bias


@triton.jit
def attend_tiles(
    q_first,
    q_second,
    largest,
    total,
    attended,
    table,
    kv_head,
    kv_heads,
    keys,
    values,
    key_scales,
    value_scales,
    first_tile,
    splits,
    first_seen,
    position,
    softcap,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Walk over cached tokens, every ``splits``-th tile from ``first_tile``; return the state."""
    half: tl.constexpr = HEAD_DIM // 2
    for tile in tl.range(first_tile, tl.cdiv(position, TILE), splits):
        tokens = tile * TILE + tl.arange(0, TILE)
        seen = (tokens >= first_seen) & (tokens < position)
        lines = cache_lines(table, tokens, seen, kv_head, kv_heads, True)
        k_tile = load_cached(keys, key_scales, lines, seen, 0, half, HALF_PAD, HEAD_DIM, True)
        scores = tl.zeros((q_first.shape[0], TILE), tl.float32)
        scores = dot(q_first, tl.trans(k_tile), scores, PLAIN)
        k_tile = load_cached(keys, key_scales, lines, seen, half, half, HALF_PAD, HEAD_DIM, True)
        scores = dot(q_second, tl.trans(k_tile), scores, PLAIN)
        scores = cap(scores, softcap, SOFTCAP)
        v_tile = load_cached(values, value_scales, lines, seen, 0, HEAD_DIM, WIDTH, HEAD_DIM, True)
        scores = tl.where(seen[None, :], scores, NOTHING)
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, axis=1)
        attended = dot(to_bf16(weights, PLAIN), v_tile, attended * fade[:, None], PLAIN)
        largest = new_largest
    return largest, total, attended


@triton.jit
def attention_decode(
    qkv,
    bias,
    q_norm,
    k_norm,
    cosines_sines,
    positions,
    tables,
    keys,
    values,
    key_scales,
    value_scales,
    outputs,
    output_scales,
    output_sums,
    partials,
    stats,
    counters,
    rows,
    qkv_splits,
    has_bias,
    table_stride,
    num_heads,
    kv_heads,
    window,
    softcap,
    scale,
    epsilon,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Rotate, write the new key and value, attend, and join. Program: (row, kv head, split).

    Split s takes tiles s, s + splits, ... of TILE tokens; splits beyond the sequence end at once.
    The one with the last tile makes the new key and value, counts them from registers, and writes
    them to the cache; no program reads them there in this launch. The last program to arrive joins
    the parts and sets its counter back to zero.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    half: tl.constexpr = HEAD_DIM // 2
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    group = num_heads // kv_heads
    head = tl.arange(0, HEADS)
    column = tl.arange(0, HALF_PAD)
    inside = column < half
    q_mask = (head < group)[:, None] & inside[None, :]
    q_offsets = (kv_head * group + head)[:, None] * HEAD_DIM + column[None, :]
    bias_first = load_bias(bias, q_offsets, q_mask, has_bias)
    bias_second = load_bias(bias + half, q_offsets, q_mask, has_bias)
    if PDL:
        tl.extra.cuda.gdc_wait()

    position = tl.load(positions + row)
    first_seen = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    first_tile = first_seen // TILE
    num_tiles = position // TILE + 1 - first_tile
    active = tl.minimum(splits, num_tiles)
    if split < active:
        table = tables + row * table_stride
        all_columns = (num_heads + 2 * kv_heads) * HEAD_DIM
        line = qkv + row * all_columns
        stride = rows.to(tl.int64) * all_columns
        angles = cosines_sines + position.to(tl.int64) * HEAD_DIM
        cosines, sines = load_halves(angles, column, inside, half)
        q_first, q_second = load_query(
            line, stride, qkv_splits, bias_first, bias_second, q_offsets, q_mask, q_norm, cosines,
            sines, column, inside, scale if SOFTCAP else scale * LOG2_E, epsilon, HEAD_DIM,
            HEAD_NORM, PLAIN,
        )  # fmt: skip
        largest = tl.full((HEADS,), NOTHING, tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        attended = tl.zeros((HEADS, WIDTH), tl.float32)
        if (num_tiles - 1) % splits == split:
            block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
            at = (block * kv_heads + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS
            k_first, k_second, value = write_new_token(
                line, stride, qkv_splits, bias, has_bias, k_norm, cosines, sines, column, inside,
                num_heads, kv_head, kv_heads, keys, values, key_scales, value_scales,
                at + tl.zeros((1,), tl.int64), epsilon, HEAD_DIM, WIDTH, HEAD_NORM, PLAIN,
            )  # fmt: skip
            products = q_first.to(tl.float32) * k_first + q_second.to(tl.float32) * k_second
            largest = cap(tl.sum(products, axis=1), softcap, SOFTCAP)
            total += 1.0
            attended += value
        largest, total, attended = attend_tiles(
            q_first, q_second, largest, total, attended, table, kv_head, kv_heads, keys, values,
            key_scales, value_scales, first_tile + split, splits, first_seen, position, softcap,
            HEAD_DIM, HALF_PAD, WIDTH, TILE, SOFTCAP, PLAIN,
        )  # fmt: skip
        if active == 1:
            store_output(
                attended, total, outputs, output_scales, output_sums, row, kv_head, group,
                num_heads, HEADS, HEAD_DIM, WIDTH, PLAIN,
            )  # fmt: skip
        else:
            pair = row * kv_heads + kv_head
            base = pair * splits
            store_part(
                largest, total, attended, partials, stats, base + split, group, HEADS, HEAD_DIM,
                WIDTH,
            )  # fmt: skip
            tl.debug_barrier()  # every thread has stored before one of them says so
            arrived = tl.atomic_add(counters + pair, 1, sem="acq_rel")
            if arrived == active - 1:
                joined, joined_total = combine(
                    partials, stats, base, active, group, ROWS, AT_ONCE, HEAD_DIM, WIDTH
                )
                store_output(
                    joined, joined_total, outputs, output_scales, output_sums, row, kv_head, group,
                    num_heads, ROWS, HEAD_DIM, WIDTH, PLAIN,
                )  # fmt: skip
                tl.store(counters + pair, 0)
