"""Attention of one new token a row over the paged cache, split along the sequence.

Split s takes tiles s, s + splits, ... of what the query sees; splits beyond the sequence end at
once. The one with the last tile counts the new key and value from registers and writes them to the
cache; no program reads them there in this launch. The last program to arrive joins the parts.

The kernel's order is that of the longest chain of loads: position and block, then the cached tile,
which travels while the query is made.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.attention.triton.family import Family, angles_of, places_of
from zse.kernels.attention.triton.join import Output, Parts, finish
from zse.kernels.attention.triton.parts import (
    LOG2_E,
    NOTHING,
    Context,
    Heads,
    Softmax,
    cap,
    decode,
    dot,
    hold,
    load_stored,
)
from zse.kernels.attention.triton.token import (
    add_summands,
    balance_token,
    load_biases,
    rotate_token,
    scale_query,
    turn_token,
    write_token,
)
from zse.kernels.rope_store.triton.heads import BLOCK_TOKENS, Stored, line_of
from zse.kernels.triton.parts import to_bf16


class Tile(NamedTuple):
    """Keys and values of T cached tokens for one head, each part ``Stored``."""

    k_first: Stored
    """[T, D / 2]."""
    k_second: Stored
    value: Stored
    """[T, D]."""
    seen: tl.tensor
    """[T], which tokens the query sees."""


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
def lines_of(blocks, heads, within):
    """Return the int64 lines [T] of the cache for places ``within`` a tile, given its blocks."""
    first, second = blocks
    block = tl.where(within < BLOCK_TOKENS, first, second).to(tl.int64)
    return line_of(block, within, heads.kv_head, heads.kv_heads)


@triton.jit
def load_tile(
    context, lines, seen, HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, WIDTH: tl.constexpr
):
    """Return the ``Tile`` of the tokens [T] in some lines of the cache, zeros where not seen."""
    half: tl.constexpr = HEAD_DIM // 2
    return Tile(
        load_stored(context.key_cache, lines, seen, 0, half, HALF_PAD, HEAD_DIM, True),
        load_stored(context.key_cache, lines, seen, half, half, HALF_PAD, HEAD_DIM, True),
        load_stored(context.value_cache, lines, seen, 0, HEAD_DIM, WIDTH, HEAD_DIM, True),
        seen,
    )


@triton.jit
def load_first_tile(
    context,
    blocks,
    first_seen,
    first_tile,
    split,
    within,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return the ``Tile`` that a split takes first.

    Args:
        context: Cached tokens.
        blocks: Those of tile ``split``, loaded already: the right ones unless a window hides tiles.
        first_seen: First position that the query sees.
        first_tile: Tile of ``first_seen``.
        split: Tiles from there to the split's first one.
        within: int32 [T], the places in a tile: 0 to T - 1.
        HEAD_DIM: D.
        HALF_PAD: D / 2 padded to a power of two.
        WIDTH: D padded to a power of two.
    """
    size: tl.constexpr = within.shape[0]
    tokens = (first_tile + split) * size + within
    seen = (tokens >= first_seen) & (tokens < context.end)
    if first_tile > 0:
        blocks = load_blocks(context.table, first_tile + split, context.end, size)
    lines = lines_of(blocks, context.heads, within)
    return load_tile(context, lines, seen, HEAD_DIM, HALF_PAD, WIDTH)


@triton.jit
def decode_tile(tile, HELD: tl.constexpr, PLAIN: tl.constexpr):
    """Return bfloat16 keys as halves [T, D / 2] and values [T, D]; HELD: not before this place."""
    if HELD:
        k_first = decode(hold(tile.k_first, PLAIN), "first")
        k_second = decode(hold(tile.k_second, PLAIN), "second")
        value = decode(hold(tile.value, PLAIN))
    else:
        k_first = decode(tile.k_first, "first")
        k_second = decode(tile.k_second, "second")
        value = decode(tile.value)
    return k_first, k_second, value


@triton.jit
def attend_new(query, token, owner, softcap, SOFTCAP: tl.constexpr):
    """Return the ``Softmax`` of the new token alone where ``owner`` is 1, else that of nothing.

    Args:
        query: Halves [HEADS, D / 2], bfloat16, scaled.
        token: The new ``Token``, whose key and value are as the cache holds them.
        owner: int32, 1 in the one program that counts the token, else 0.
        softcap: See ``cap``.
        SOFTCAP: See ``cap``.
    """
    q_first, q_second = query
    products = q_first.to(tl.float32) * token.k_first + q_second.to(tl.float32) * token.k_second
    score = cap(tl.sum(products, axis=1), softcap, SOFTCAP)
    owns = tl.zeros(score.shape, tl.int32) + owner > 0
    return Softmax(
        tl.where(owns, score, NOTHING),
        tl.where(owns, 1.0, 0.0),
        tl.where(owns[:, None], token.value, 0.0),
    )


@triton.jit
def attend_tile(
    query, softmax, tile, softcap, HELD: tl.constexpr, SOFTCAP: tl.constexpr, PLAIN: tl.constexpr
):
    """Return the ``Softmax`` after one tile of cached tokens."""
    q_first, q_second = query
    k_first, k_second, value = decode_tile(tile, HELD, PLAIN)
    scores = tl.zeros((q_first.shape[0], k_first.shape[0]), tl.float32)
    scores = dot(q_first, tl.trans(k_first), scores, PLAIN)
    scores = dot(q_second, tl.trans(k_second), scores, PLAIN)
    scores = tl.where(tile.seen[None, :], cap(scores, softcap, SOFTCAP), NOTHING)
    largest = tl.maximum(softmax.largest, tl.max(scores, axis=1))
    weights = tl.where(tile.seen[None, :], tl.exp2(scores - largest[:, None]), 0.0)
    fade = tl.exp2(softmax.largest - largest)
    total = softmax.total * fade + tl.sum(weights, axis=1)
    attended = dot(to_bf16(weights, PLAIN), value, softmax.attended * fade[:, None], PLAIN)
    return Softmax(largest, total, attended)


@triton.jit
def attend_tiles(
    context,
    blocks,
    first_tile,
    step,
    query,
    softmax,
    softcap,
    within,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Return the ``Softmax`` after tiles ``first_tile``, ``first_tile + step``, ... of a context.

    ``blocks`` are those of the first tile; each tile's are asked for one tile ahead. ``within`` are
    the places in a tile, int32 [T].
    """
    size: tl.constexpr = within.shape[0]
    for tile in tl.range(first_tile, tl.cdiv(context.end, size), step):
        seen = tile * size + within < context.end
        lines = lines_of(blocks, context.heads, within)
        blocks = load_blocks(context.table, tile + step, context.end, size)
        loaded = load_tile(context, lines, seen, HEAD_DIM, HALF_PAD, WIDTH)
        softmax = attend_tile(query, softmax, loaded, softcap, False, SOFTCAP, PLAIN)
    return softmax


@triton.jit
def decode_row(
    qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, tables, key_cache,
    value_cache, output, parts, rows, qkv_splits, has_bias, has_factors, table_stride, num_heads,
    kv_heads, window, softcap, scale, epsilon, early, family,
    HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr, HEAD_NORM: tl.constexpr,
    SOFTCAP: tl.constexpr, FAMILY: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Rotate, write the new key and value, attend, and join. Program: (row, kv head, split).

    ``family`` is looked at where FAMILY says so. What is in the cache, and where, is asked for
    before the kernel ahead has ended where ``early`` says that nobody in this step writes it.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    heads = Heads(kv_head, kv_heads, num_heads, num_heads // kv_heads)
    shift: tl.constexpr = 0 if FAMILY else HEAD_DIM // 2
    places = places_of(heads, family, HEADS, HEAD_DIM, HALF_PAD, WIDTH, FAMILY)
    token = load_biases(bias, places, has_bias, shift)
    if PDL:  # noqa: SIM102 - a constant of the target, then a number of the launch
        if early == 0:
            tl.extra.cuda.gdc_wait()

    table = tables + row * table_stride
    position = tl.load(positions + row)
    within = tl.arange(0, TILE)
    # What a split takes first, unless a window hides it; asked for before the position is known.
    blocks = load_blocks(table, split, table_stride * BLOCK_TOKENS, TILE)
    first_seen = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    first_tile = first_seen // TILE
    num_tiles = position // TILE + 1 - first_tile
    active = tl.minimum(splits, num_tiles)
    if split < active:
        end = position + 1 - family.stores if FAMILY else position  # what is in the cache
        context = Context(key_cache, value_cache, table, end, heads)
        tile = load_first_tile(
            context, blocks, first_seen, first_tile, split, within, HEAD_DIM, HALF_PAD, WIDTH
        )
        angles = angles_of(cosines_sines, position, family, HEAD_DIM, HALF_PAD, FAMILY)
        new_block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
        second_tile = first_tile + split + splits
        blocks = load_blocks(table, second_tile, end, TILE)

        if PDL:
            tl.extra.cuda.gdc_wait()
        all_columns = (family.joined_heads if FAMILY else num_heads + 2 * kv_heads) * HEAD_DIM
        token = add_summands(token, places, qkv, row, rows, qkv_splits, all_columns, shift)
        token = rotate_token(
            token, q_norm, k_norm, angles, family, epsilon, HEAD_DIM, HEAD_NORM, FAMILY
        )
        token = balance_token(
            token, places, key_factors, has_factors, family.first_key if FAMILY else num_heads,
            HEAD_DIM, shift, key_cache.elements.dtype.element_ty == tl.int8,
        )  # fmt: skip
        token = turn_token(token, key_cache.elements.dtype.element_ty == tl.uint8)
        query = scale_query(token, scale if SOFTCAP else scale * LOG2_E, PLAIN)
        owner = ((num_tiles - 1) % splits == split).to(tl.int32)
        if FAMILY:
            owner = owner * family.stores
        token = write_token(token, places, owner, context, new_block, HEAD_DIM, PLAIN)

        softmax = attend_new(query, token, owner, softcap, SOFTCAP)
        softmax = attend_tile(query, softmax, tile, softcap, True, SOFTCAP, PLAIN)
        softmax = attend_tiles(
            context, blocks, second_tile, splits, query, softmax, softcap,
            within, HEAD_DIM, HALF_PAD, WIDTH, SOFTCAP, PLAIN,
        )  # fmt: skip
        finish(
            softmax, output, parts, row, heads, split, splits, active, family,
            ROWS, AT_ONCE, HEAD_DIM, FAMILY, PLAIN,
        )  # fmt: skip
    else:
        if PDL:  # the kernel behind this one counts on what is ahead of it
            tl.extra.cuda.gdc_wait()


@triton.jit
def attention_decode(
    qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, tables,
    keys, values, key_scales, value_scales,
    outputs, output_scales, output_sums, partials, stats, counters,
    rows, qkv_splits, has_bias, has_factors, table_stride, num_heads, kv_heads, window, softcap,
    scale, epsilon, early,
    HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr, HEAD_NORM: tl.constexpr,
    SOFTCAP: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with rows of q, k and v; see ``decode_row``."""
    decode_row(
        qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, tables,
        Stored(keys, key_scales), Stored(values, value_scales),
        Output(outputs, output_scales, output_sums), Parts(partials, stats, counters),
        rows, qkv_splits, has_bias, has_factors, table_stride, num_heads, kv_heads, window, softcap,
        scale, epsilon, early, None, HEAD_DIM, HALF_PAD, WIDTH, HEADS, ROWS, TILE, AT_ONCE,
        HEAD_NORM, SOFTCAP, False, PDL, PLAIN,
    )  # fmt: skip


@triton.jit
def family_decode(
    qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, tables,
    keys, values, key_scales, value_scales,
    outputs, output_scales, output_sums, partials, stats, counters, sinks,
    rows, qkv_splits, has_bias, has_factors, table_stride, num_heads, kv_heads, window, softcap,
    scale, epsilon, early,
    joined_heads, first_key, first_value, stores, rotary_half, norms_values, value_epsilon,
    has_gates, has_sinks,
    HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr, HEAD_NORM: tl.constexpr,
    SOFTCAP: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with rows of any kind, with sinks and gates where there are some."""
    family = Family(
        joined_heads, first_key, first_value, stores, rotary_half, norms_values, value_epsilon,
        has_gates, has_sinks, sinks, qkv, bias, rows, qkv_splits, has_bias,
    )  # fmt: skip
    decode_row(
        qkv, bias, q_norm, k_norm, key_factors, cosines_sines, positions, tables,
        Stored(keys, key_scales), Stored(values, value_scales),
        Output(outputs, output_scales, output_sums), Parts(partials, stats, counters),
        rows, qkv_splits, has_bias, has_factors, table_stride, num_heads, kv_heads, window, softcap,
        scale, epsilon, early, family, HEAD_DIM, HALF_PAD, WIDTH, HEADS, ROWS, TILE, AT_ONCE,
        HEAD_NORM, SOFTCAP, True, PDL, PLAIN,
    )  # fmt: skip
