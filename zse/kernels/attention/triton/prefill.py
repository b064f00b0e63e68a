"""Flash attention of many new tokens over the paged cache, which holds them already."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.attention.triton.family import count_sinks
from zse.kernels.attention.triton.parts import (
    LOG2_E,
    NOTHING,
    Context,
    Heads,
    Softmax,
    cache_lines,
    cap,
    decode,
    dot,
    load_stored,
)
from zse.kernels.rope_store.triton.heads import Stored
from zse.kernels.triton.parts import load_bias, sum_partials, to_bf16, wait_for_inputs


class Rules(NamedTuple):
    """What queries see and how they weigh it."""

    window: tl.tensor
    """Positions that a query sees, its own included."""
    softcap: tl.tensor
    """See ``cap``."""
    scale: tl.tensor
    """Factor on products, which makes them scores to base 2 unless ``cap`` does."""


@triton.jit
def attend_range(
    query,
    position,
    softmax,
    first,
    last,
    context,
    rules,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WHOLE: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Return the ``Softmax`` of queries [Q, WIDTH] after cached tokens ``first`` to ``last``.

    Without MASKED every query sees every token of the range; WHOLE: also those behind it.
    """
    width: tl.constexpr = query.shape[1]
    largest, total, attended = softmax
    for start in tl.range(first, last, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        stored = tokens < context.end
        lines = cache_lines(context, tokens, stored, MASKED)
        key = load_stored(context.key_cache, lines, stored, 0, HEAD_DIM, width, HEAD_DIM, MASKED)
        scores = tl.zeros((query.shape[0], TOKENS), tl.float32)
        scores = dot(query, tl.trans(decode(key)), scores, PLAIN) * rules.scale
        scores = cap(scores, rules.softcap, SOFTCAP)
        if MASKED:
            if WHOLE:
                seen = stored[None, :] & (position[:, None] >= 0)
                if WINDOW:
                    seen = seen & (tokens[None, :] < position[:, None] + rules.window)
            else:
                seen = tokens[None, :] <= position[:, None]
            if WINDOW:
                seen = seen & (tokens[None, :] > position[:, None] - rules.window)
            scores = tl.where(seen, scores, NOTHING)
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, axis=1)
        value = load_stored(
            context.value_cache, lines, stored, 0, HEAD_DIM, width, HEAD_DIM, MASKED
        )
        attended = attended * fade[:, None]
        value = decode(value)
        attended = dot(to_bf16(weights, PLAIN), value, attended, PLAIN)
        largest = new_largest
    return Softmax(largest, total, attended)


@triton.jit
def prefill_tile(
    queries, key_cache, value_cache, tables,
    tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, tile_ends,
    outputs, sinks, table_stride, num_heads, kv_heads, window, softcap, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, TOKENS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, WHOLE: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with up to QUERIES consecutive tokens of one sequence. Program: (head, tile).

    WHOLE: a token sees all of its text, or a window to both sides; the cache holds all of it.

    Tiles are taken from the last, where sequences are longest, so that no long one starts late.
    """
    wait_for_inputs(PDL)
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    first_row = tl.load(tile_first_rows + tile).to(tl.int64)
    num_rows = tl.load(tile_num_rows + tile)
    first_position = tl.load(tile_first_positions + tile)
    table = tables + tl.load(tile_table_rows + tile).to(tl.int64) * table_stride
    group = num_heads // kv_heads
    heads = Heads(head // group, kv_heads, num_heads, group)

    index = tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    line = (first_row + index)[:, None] * num_heads + head
    at = line * HEAD_DIM + column[None, :]
    mask = (index < num_rows)[:, None] & (column < HEAD_DIM)[None, :]
    query = tl.load(queries + at, mask=mask, other=0.0)

    position = first_position + index
    end = first_position + num_rows
    if WHOLE:
        end = tl.load(tile_ends + tile)
    context = Context(key_cache, value_cache, table, end, heads)
    first_masked = first_position // TOKENS * TOKENS  # every query sees the tokens before it
    if WHOLE:
        first_masked = end // TOKENS * TOKENS
    if WINDOW:
        if WHOLE:
            end = tl.minimum(end, first_position + num_rows - 1 + window)
        first_masked = tl.maximum(first_position + 1 - window, 0) // TOKENS * TOKENS
    rules = Rules(window, softcap, scale if SOFTCAP else scale * LOG2_E)
    softmax = Softmax(
        tl.full((QUERIES,), NOTHING, tl.float32),
        tl.zeros((QUERIES,), tl.float32),
        tl.zeros((QUERIES, WIDTH), tl.float32),
    )
    if not WINDOW:
        softmax = attend_range(
            query, position, softmax, 0, first_masked, context, rules,
            HEAD_DIM, TOKENS, False, False, SOFTCAP, WHOLE, PLAIN,
        )  # fmt: skip
    softmax = attend_range(
        query, position, softmax, first_masked, end, context, rules,
        HEAD_DIM, TOKENS, True, WINDOW, SOFTCAP, WHOLE, PLAIN,
    )  # fmt: skip
    if SINKS:
        heads_of_rows = tl.zeros((QUERIES,), tl.int32) + head
        softmax = count_sinks(softmax, sinks, 1, heads_of_rows, index < num_rows)
    tl.store(outputs + at, to_bf16(softmax.attended / softmax.total[:, None], PLAIN), mask=mask)


@triton.jit
def attention_prefill(
    queries, keys, values, key_scales, value_scales, tables,
    tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, outputs,
    table_stride, num_heads, kv_heads, window, softcap, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, TOKENS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend; see ``prefill_tile``."""
    prefill_tile(
        queries, Stored(keys, key_scales), Stored(values, value_scales), tables,
        tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, None,
        outputs, None, table_stride, num_heads, kv_heads, window, softcap, scale,
        HEAD_DIM, WIDTH, QUERIES, TOKENS, WINDOW, SOFTCAP, False, False, PDL, PLAIN,
    )  # fmt: skip


@triton.jit
def sink_prefill(
    queries, keys, values, key_scales, value_scales, tables,
    tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, outputs, sinks,
    table_stride, num_heads, kv_heads, window, softcap, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, TOKENS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with sinks, float32 [num_heads]; see ``prefill_tile``."""
    prefill_tile(
        queries, Stored(keys, key_scales), Stored(values, value_scales), tables,
        tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, None,
        outputs, sinks, table_stride, num_heads, kv_heads, window, softcap, scale,
        HEAD_DIM, WIDTH, QUERIES, TOKENS, WINDOW, SOFTCAP, True, False, PDL, PLAIN,
    )  # fmt: skip


@triton.jit
def text_prefill(
    queries, keys, values, key_scales, value_scales, tables,
    tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, outputs, tile_ends,
    table_stride, num_heads, kv_heads, window, softcap, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, TOKENS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend to whole texts, which end at ``tile_ends``; see ``prefill_tile``."""
    prefill_tile(
        queries, Stored(keys, key_scales), Stored(values, value_scales), tables,
        tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions, tile_ends,
        outputs, None, table_stride, num_heads, kv_heads, window, softcap, scale,
        HEAD_DIM, WIDTH, QUERIES, TOKENS, WINDOW, SOFTCAP, False, True, PDL, PLAIN,
    )  # fmt: skip


@triton.jit
def output_gate(
    qkv, bias, outputs, rows, splits, has_bias, joined_columns, query_columns,
    BLOCK: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Multiply attention by the sigmoid of its gates, in place. Program: (row, block of columns).

    Gates lie behind the queries in rows of the joined product, float32 [splits, rows, columns].
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < query_columns
    stride = rows.to(tl.int64) * joined_columns
    at = query_columns + column
    gates = sum_partials(qkv + row * joined_columns, at, inside, splits, stride)
    gates += load_bias(bias, at, inside, has_bias)
    at = outputs + row * query_columns + column
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, to_bf16(values * tl.sigmoid(gates), PLAIN), mask=inside)
