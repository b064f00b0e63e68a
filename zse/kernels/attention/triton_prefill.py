"""Flash attention of many new tokens over the paged cache, which holds them already."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.attention.triton_parts import (
    LOG2_E,
    NOTHING,
    cache_lines,
    cap,
    decode,
    dot,
    load_stored,
)
from zse.kernels.norm.triton_parts import to_bf16


@triton.jit
def attend_range(
    query,
    query_position,
    largest,
    total,
    attended,
    first,
    last,
    table,
    end,
    kv_head,
    kv_heads,
    keys,
    values,
    key_scales,
    value_scales,
    window,
    softcap,
    scale,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Walk over cached tokens ``first`` to ``last``; return the softmax's state.

    Without MASKED every query sees every token of the range.
    """
    for start in tl.range(first, last, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        stored = tokens < end
        lines = cache_lines(table, tokens, stored, kv_head, kv_heads, MASKED)
        k_tile, k_scales = load_stored(
            keys, key_scales, lines, stored, 0, HEAD_DIM, WIDTH, HEAD_DIM, MASKED
        )
        scores = tl.zeros((query.shape[0], TOKENS), tl.float32)
        scores = dot(query, tl.trans(decode(k_tile, k_scales)), scores, PLAIN) * scale
        scores = cap(scores, softcap, SOFTCAP)
        if MASKED:
            seen = tokens[None, :] <= query_position[:, None]
            if WINDOW:
                seen = seen & (tokens[None, :] > query_position[:, None] - window)
            scores = tl.where(seen, scores, NOTHING)
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, axis=1)
        v_tile, v_scales = load_stored(
            values, value_scales, lines, stored, 0, HEAD_DIM, WIDTH, HEAD_DIM, MASKED
        )
        attended = attended * fade[:, None]
        value = decode(v_tile, v_scales)
        attended = dot(to_bf16(weights, PLAIN), value, attended, PLAIN)
        largest = new_largest
    return largest, total, attended


@triton.jit
def attention_prefill(
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    tile_first_rows,
    tile_num_rows,
    tile_table_rows,
    tile_first_positions,
    outputs,
    table_stride,
    num_heads,
    kv_heads,
    window,
    softcap,
    scale,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Attend with up to QUERIES consecutive tokens of one sequence. Program: (head, tile).

    Tiles are taken from the last, where sequences are longest, so that no long one starts late.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    first_row = tl.load(tile_first_rows + tile).to(tl.int64)
    num_rows = tl.load(tile_num_rows + tile)
    first_position = tl.load(tile_first_positions + tile)
    table = tables + tl.load(tile_table_rows + tile).to(tl.int64) * table_stride
    kv_head = head // (num_heads // kv_heads)

    index = tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    line = (first_row + index)[:, None] * num_heads + head
    at = line * HEAD_DIM + column[None, :]
    mask = (index < num_rows)[:, None] & (column < HEAD_DIM)[None, :]
    query = tl.load(queries + at, mask=mask, other=0.0)

    query_position = first_position + index
    end = first_position + num_rows
    first_seen = 0
    if WINDOW:
        first_seen = tl.maximum(first_position + 1 - window, 0) // TOKENS * TOKENS
    seen_by_all = first_position // TOKENS * TOKENS  # tokens before it need no mask
    score_scale = scale if SOFTCAP else scale * LOG2_E
    largest = tl.full((QUERIES,), NOTHING, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, WIDTH), tl.float32)
    if WINDOW:
        largest, total, attended = attend_range(
            query, query_position, largest, total, attended, first_seen, end, table, end, kv_head,
            kv_heads, keys, values, key_scales, value_scales, window, softcap, score_scale,
            HEAD_DIM, WIDTH, TOKENS, True, True, SOFTCAP, PLAIN,
        )  # fmt: skip
    else:
        largest, total, attended = attend_range(
            query, query_position, largest, total, attended, 0, seen_by_all, table, end, kv_head,
            kv_heads, keys, values, key_scales, value_scales, window, softcap, score_scale,
            HEAD_DIM, WIDTH, TOKENS, False, False, SOFTCAP, PLAIN,
        )  # fmt: skip
        largest, total, attended = attend_range(
            query, query_position, largest, total, attended, seen_by_all, end, table, end, kv_head,
            kv_heads, keys, values, key_scales, value_scales, window, softcap, score_scale,
            HEAD_DIM, WIDTH, TOKENS, True, False, SOFTCAP, PLAIN,
        )  # fmt: skip
    tl.store(outputs + at, to_bf16(attended / total[:, None], PLAIN), mask=mask)
