"""Attention of one new token a row over the paged cache, split along the sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton_join import combine, store_output, store_part
from zse.kernels.attention.triton_parts import (
    LOG2_E,
    NOTHING,
    cap,
    decode,
    dot,
    hold,
    load_stored,
)
from zse.kernels.attention.triton_token import (
    add_parts,
    load_biases,
    load_halves,
    scale_query,
    turn,
    write_token,
)
from zse.kernels.norm.triton_parts import to_bf16
from zse.kernels.rope_store.triton_heads import BLOCK_TOKENS


@triton.jit
def load_blocks(table, tile, end, TILE: tl.constexpr):
    """Return the one or two blocks that hold a tile, where the tile starts before ``end``.

    Scalars, so that one load serves all threads.
    """
    blocks: tl.constexpr = TILE // BLOCK_TOKENS
    first = tl.load(table + tile * blocks, mask=tile * TILE < end, other=0)
    second = first
    if blocks == 2:
        at = tile * 2 + 1
        second = tl.load(table + at, mask=at * BLOCK_TOKENS < end, other=0)
    return first, second


@triton.jit
def lines_of(first, second, token, kv_head, kv_heads):
    """Return int64 lines of the cache for tokens 0 to TILE - 1 of a tile."""
    block = tl.where(token < BLOCK_TOKENS, first, second).to(tl.int64)
    return (block * kv_heads + kv_head) * BLOCK_TOKENS + token % BLOCK_TOKENS


@triton.jit
def load_tile(
    keys,
    values,
    key_scales,
    value_scales,
    lines,
    seen,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return halves of the keys [T, D / 2] and the values [T, D] of some cached tokens as stored.

    Each is followed by its scales.
    """
    half: tl.constexpr = HEAD_DIM // 2
    first, first_scales = load_stored(
        keys, key_scales, lines, seen, 0, half, HALF_PAD, HEAD_DIM, True
    )
    second, second_scales = load_stored(
        keys, key_scales, lines, seen, half, half, HALF_PAD, HEAD_DIM, True
    )
    value, value_scales_ = load_stored(
        values, value_scales, lines, seen, 0, HEAD_DIM, WIDTH, HEAD_DIM, True
    )
    return first, first_scales, second, second_scales, value, value_scales_


@triton.jit
def attend_tile(
    q_first,
    q_second,
    largest,
    total,
    attended,
    k_first,
    k_second,
    value,
    seen,
    softcap,
    SOFTCAP: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Return the softmax's state after one tile of cached tokens."""
    scores = tl.zeros((q_first.shape[0], k_first.shape[0]), tl.float32)
    scores = dot(q_first, tl.trans(k_first), scores, PLAIN)
    scores = dot(q_second, tl.trans(k_second), scores, PLAIN)
    scores = tl.where(seen[None, :], cap(scores, softcap, SOFTCAP), NOTHING)
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    weights = tl.where(seen[None, :], tl.exp2(scores - new_largest[:, None]), 0.0)
    fade = tl.exp2(largest - new_largest)
    total = total * fade + tl.sum(weights, axis=1)
    attended = dot(to_bf16(weights, PLAIN), value, attended * fade[:, None], PLAIN)
    return new_largest, total, attended


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
    The one with the last tile counts the new key and value from registers and writes them to the
    cache; no program reads them there in this launch. The last program to arrive joins the parts
    and sets its counter back to zero.

    The order below is that of the longest chain of loads: position and block, then the cached
    tile, which travels while the query is made.
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
    wide = tl.arange(0, WIDTH)[None, :]
    q_mask = (head < group)[:, None] & inside[None, :]
    k_mask = inside[None, :]
    v_mask = wide < HEAD_DIM
    q_at = (kv_head * group + head)[:, None] * HEAD_DIM + column[None, :]
    k_at = (num_heads + kv_head) * HEAD_DIM + column[None, :]
    v_at = (num_heads + kv_heads + kv_head) * HEAD_DIM + wide
    q_first, q_second, k_first, k_second, value = load_biases(
        bias, q_at, k_at, v_at, q_mask, k_mask, v_mask, has_bias, half
    )
    if PDL:
        tl.extra.cuda.gdc_wait()

    table = tables + row * table_stride
    position = tl.load(positions + row)
    token = tl.arange(0, TILE)
    # What a split takes first, unless a window hides it; asked for before the position is known.
    block_0, block_1 = load_blocks(table, split, table_stride * BLOCK_TOKENS, TILE)
    first_seen = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    first_tile = first_seen // TILE
    num_tiles = position // TILE + 1 - first_tile
    active = tl.minimum(splits, num_tiles)
    if split < active:
        tokens = (first_tile + split) * TILE + token
        seen = (tokens >= first_seen) & (tokens < position)
        if first_tile > 0:
            block_0, block_1 = load_blocks(table, first_tile + split, position, TILE)
        lines = lines_of(block_0, block_1, token, kv_head, kv_heads)
        tile_1, scales_1, tile_2, scales_2, tile_v, scales_v = load_tile(
            keys, values, key_scales, value_scales, lines, seen, HEAD_DIM, HALF_PAD, WIDTH
        )
        angles = cosines_sines + position.to(tl.int64) * HEAD_DIM
        cosines, sines = load_halves(angles, column, inside, half)
        new_block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
        second_tile = first_tile + split + splits
        block_0, block_1 = load_blocks(table, second_tile, position, TILE)
        all_columns = (num_heads + 2 * kv_heads) * HEAD_DIM
        q_first, q_second, k_first, k_second, value = add_parts(
            qkv + row * all_columns, rows.to(tl.int64) * all_columns, qkv_splits, q_at, k_at, v_at,
            q_mask, k_mask, v_mask, q_first, q_second, k_first, k_second, value, half,
        )  # fmt: skip

        q_first, q_second = turn(
            q_first, q_second, q_norm, cosines, sines, column, inside, epsilon, HEAD_DIM, HEAD_NORM
        )
        k_first, k_second = turn(
            k_first, k_second, k_norm, cosines, sines, column, inside, epsilon, HEAD_DIM, HEAD_NORM
        )
        query_first, query_second = scale_query(
            q_first, q_second, scale if SOFTCAP else scale * LOG2_E, PLAIN
        )
        owner = tl.zeros((1, 1), tl.int32) + ((num_tiles - 1) % splits == split).to(tl.int32) > 0
        new_line = (new_block * kv_heads + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS
        k_first, k_second, value = write_token(
            k_first, k_second, value, keys, values, key_scales, value_scales,
            new_line + tl.zeros((1,), tl.int64), column, k_mask & owner, v_mask & owner, HEAD_DIM,
            WIDTH, PLAIN,
        )  # fmt: skip
        products = query_first.to(tl.float32) * k_first + query_second.to(tl.float32) * k_second
        score = cap(tl.sum(products, axis=1), softcap, SOFTCAP)
        owns = tl.zeros((HEADS,), tl.int32) + ((num_tiles - 1) % splits == split).to(tl.int32) > 0
        largest = tl.where(owns, score, NOTHING)
        total = tl.where(owns, 1.0, 0.0)
        attended = tl.where(owns[:, None], value, 0.0)

        largest, total, attended = attend_tile(
            query_first, query_second, largest, total, attended,
            decode(hold(tile_1, PLAIN), scales_1), decode(hold(tile_2, PLAIN), scales_2),
            decode(hold(tile_v, PLAIN), scales_v), seen, softcap, SOFTCAP, PLAIN,
        )  # fmt: skip
        for tile in tl.range(second_tile, tl.cdiv(position, TILE), splits):
            tokens = tile * TILE + token
            seen = tokens < position
            lines = lines_of(block_0, block_1, token, kv_head, kv_heads)
            block_0, block_1 = load_blocks(table, tile + splits, position, TILE)
            next_1, scales_1, next_2, scales_2, next_v, scales_v = load_tile(
                keys, values, key_scales, value_scales, lines, seen, HEAD_DIM, HALF_PAD, WIDTH
            )
            largest, total, attended = attend_tile(
                query_first, query_second, largest, total, attended, decode(next_1, scales_1),
                decode(next_2, scales_2), decode(next_v, scales_v), seen, softcap, SOFTCAP, PLAIN,
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
