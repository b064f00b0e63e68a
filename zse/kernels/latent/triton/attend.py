"""Attention of wide queries over the paged cache of latents, which holds their own tokens already.

All heads read the same row of a token: it is the key, and its first columns are the value. So a
program takes some heads of a token, or some tokens with all of their heads, and reads each row
once for both products.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.attention.triton.decode import lines_of, load_blocks
from zse.kernels.attention.triton.parts import (
    LOG2_E,
    NOTHING,
    Context,
    Heads,
    Softmax,
    cache_lines,
    decode,
    dot,
    load_stored,
)
from zse.kernels.rope_store.triton.heads import Stored
from zse.kernels.triton.parts import to_bf16, wait_for_inputs


class Asked(NamedTuple):
    """Queries, bfloat16, a line for each head of each token."""

    latent: tl.tensor
    """[L, RANK]."""
    turning: tl.tensor
    """[L, TURNING]."""


@triton.jit
def load_asked(queries, lines, exists, RANK: tl.constexpr, TURNING: tl.constexpr):
    """Return the ``Asked`` of int64 lines [L], zeros where one does not exist."""
    at = queries + lines[:, None] * (RANK + TURNING)
    latent = tl.arange(0, RANK)[None, :]
    turning = RANK + tl.arange(0, TURNING)[None, :]
    there = exists[:, None]
    return Asked(
        tl.load(at + latent, mask=there & (latent >= 0), other=0.0),
        tl.load(at + turning, mask=there & (turning >= 0), other=0.0),
    )


@triton.jit
def nothing_yet(LINES: tl.constexpr, RANK: tl.constexpr):
    """Return the ``Softmax`` of lines that have seen no token."""
    return Softmax(
        tl.full((LINES,), NOTHING, tl.float32),
        tl.zeros((LINES,), tl.float32),
        tl.zeros((LINES, RANK), tl.float32),
    )


@triton.jit
def attend_tile(
    asked, softmax, context, lines, stored, seen, scale,
    RANK: tl.constexpr, TURNING: tl.constexpr, MASKED: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Return the ``Softmax`` after the T tokens in some lines of the cache.

    Args:
        asked: ``Asked``.
        softmax: Of the tokens before.
        context: Where the cache is.
        lines: int64 [T].
        stored: [T], which tokens there are.
        seen: [1 or L, T], which of them each query sees, looked at where MASKED.
        scale: Of scores to base 2.
        RANK: Columns of a latent.
        TURNING: Columns of a key that turns.
        MASKED: Whether there may be tokens that are not stored or not seen.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    kept: tl.constexpr = RANK + TURNING
    latent = decode(load_stored(context.key_cache, lines, stored, 0, RANK, RANK, kept, MASKED))
    turning = decode(
        load_stored(context.key_cache, lines, stored, RANK, TURNING, TURNING, kept, MASKED)
    )
    scores = tl.zeros((asked.latent.shape[0], latent.shape[0]), tl.float32)
    scores = dot(asked.latent, tl.trans(latent), scores, PLAIN)
    scores = dot(asked.turning, tl.trans(turning), scores, PLAIN) * scale
    if MASKED:
        scores = tl.where(seen, scores, NOTHING)
    largest = tl.maximum(softmax.largest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - largest[:, None])
    fade = tl.exp2(softmax.largest - largest)
    total = softmax.total * fade + tl.sum(weights, axis=1)
    attended = dot(to_bf16(weights, PLAIN), latent, softmax.attended * fade[:, None], PLAIN)
    return Softmax(largest, total, attended)


@triton.jit
def store_attended(softmax, queries, lines, exists, KEPT: tl.constexpr, PLAIN: tl.constexpr):
    """Store sums of latents over the first columns of their queries."""
    column = tl.arange(0, softmax.attended.shape[1])[None, :]
    values = to_bf16(softmax.attended / softmax.total[:, None], PLAIN)
    tl.store(queries + lines[:, None] * KEPT + column, values, mask=exists[:, None] & (column >= 0))


@triton.jit
def latent_decode(
    queries, keys, key_scales, tables, positions, attended, stats, num_heads, table_stride, scale,
    RANK: tl.constexpr, TURNING: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with some heads of a row to tiles s, s + splits, ... Program: (row, heads, split s).

    Alone a program stores sums of latents where its queries were. Else it leaves its part:
    ``attended`` float32 [rows, heads, splits, RANK], and in ``stats`` [rows, heads, splits, 2] the
    largest score and the total; splits beyond the sequence leave none.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    exists = head < num_heads
    position = tl.load(positions + row)
    table = tables + row * table_stride
    end = position + 1
    if split * TOKENS < end:
        cache = Stored(keys, key_scales)
        context = Context(cache, cache, table, end, Heads(0, 1, num_heads, num_heads))
        lines = row * num_heads + head
        asked = load_asked(queries, lines, exists, RANK, TURNING)
        softmax = nothing_yet(HEADS, RANK)
        within = tl.arange(0, TOKENS)
        blocks = load_blocks(table, split, end, TOKENS)
        for tile in tl.range(split, tl.cdiv(end, TOKENS), splits):
            stored = tile * TOKENS + within < end
            at = lines_of(blocks, context.heads, within)
            blocks = load_blocks(table, tile + splits, end, TOKENS)
            softmax = attend_tile(
                asked, softmax, context, at, stored, stored[None, :], scale * LOG2_E,
                RANK, TURNING, True, PLAIN,
            )  # fmt: skip
        if splits == 1:
            store_attended(softmax, queries, lines, exists, RANK + TURNING, PLAIN)
        else:
            part = lines * splits + split
            column = tl.arange(0, RANK)[None, :]
            there = exists[:, None] & (column >= 0)
            tl.store(attended + part[:, None] * RANK + column, softmax.attended, mask=there)
            tl.store(stats + part * 2, softmax.largest, mask=exists)
            tl.store(stats + part * 2 + 1, softmax.total, mask=exists)


@triton.jit
def latent_join(
    queries, positions, attended, stats, num_heads, splits,
    RANK: tl.constexpr, TURNING: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    AT_ONCE: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Join the parts that ``latent_decode`` left. Program: (row, head, part of the columns).

    They are added up in the order of the splits, so the result does not depend on who was first.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    line = row * num_heads + tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    active = tl.minimum(splits, tl.load(positions + row) // TOKENS + 1)
    largest = tl.full((1,), NOTHING, tl.float32)
    total = tl.zeros((1,), tl.float32)
    joined = tl.zeros((1, COLUMNS), tl.float32)
    for first in range(0, active, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        exists = split < active
        part = line * splits + split
        maxima = tl.load(stats + part * 2, mask=exists, other=NOTHING)[:, None]
        totals = tl.load(stats + part * 2 + 1, mask=exists, other=0.0)[:, None]
        there = exists[:, None] & (column >= 0)
        values = tl.load(attended + part[:, None] * RANK + column, mask=there, other=0.0)
        new_largest = tl.maximum(largest, tl.max(maxima, axis=0))
        weights = tl.exp2(maxima - new_largest[None, :])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(totals * weights, axis=0)
        joined = joined * fade[:, None] + tl.sum(values * weights, axis=0)[None, :]
        largest = new_largest
    at = queries + line * (RANK + TURNING) + column
    tl.store(at, to_bf16(joined / total[:, None], PLAIN))


@triton.jit
def attend_range(
    asked, position, softmax, first, last, context, scale,
    RANK: tl.constexpr, TURNING: tl.constexpr, TOKENS: tl.constexpr, MASKED: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Return the ``Softmax`` of queries at ``position`` [L] after tokens ``first`` to ``last``.

    Without MASKED every query sees all of them.
    """
    for start in tl.range(first, last, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        stored = tokens < context.end
        lines = cache_lines(context, tokens, stored, MASKED)
        seen = tokens[None, :] <= position[:, None]
        softmax = attend_tile(
            asked, softmax, context, lines, stored, seen, scale, RANK, TURNING, MASKED, PLAIN
        )
    return softmax


@triton.jit
def latent_prefill(
    queries, keys, key_scales, tables,
    tile_first_rows, tile_num_rows, tile_table_rows, tile_first_positions,
    num_heads, table_stride, scale,
    RANK: tl.constexpr, TURNING: tl.constexpr, LINES: tl.constexpr, TOKENS: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with LINES queries, all heads of some tokens of a tile. Program: (part, tile).

    Sums of latents go where the queries were. Tiles and parts are taken from the last, where
    sequences are longest.
    """
    wait_for_inputs(PDL)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    first_row = tl.load(tile_first_rows + tile).to(tl.int64)
    num_lines = tl.load(tile_num_rows + tile) * num_heads
    first_line = (tl.num_programs(0) - 1 - tl.program_id(0)) * LINES
    if first_line < num_lines:
        first_position = tl.load(tile_first_positions + tile)
        table = tables + tl.load(tile_table_rows + tile).to(tl.int64) * table_stride
        line = first_line + tl.arange(0, LINES)
        exists = line < num_lines
        lines = first_row * num_heads + line
        asked = load_asked(queries, lines, exists, RANK, TURNING)
        position = first_position + line // num_heads
        end = first_position + (tl.minimum(first_line + LINES, num_lines) - 1) // num_heads + 1
        cache = Stored(keys, key_scales)
        context = Context(cache, cache, table, end, Heads(0, 1, num_heads, num_heads))
        # Every query sees the tokens before that.
        first_masked = (first_position + first_line // num_heads) // TOKENS * TOKENS
        softmax = nothing_yet(LINES, RANK)
        softmax = attend_range(
            asked, position, softmax, 0, first_masked, context, scale * LOG2_E,
            RANK, TURNING, TOKENS, False, PLAIN,
        )  # fmt: skip
        softmax = attend_range(
            asked, position, softmax, first_masked, end, context, scale * LOG2_E,
            RANK, TURNING, TOKENS, True, PLAIN,
        )  # fmt: skip
        store_attended(softmax, queries, lines, exists, RANK + TURNING, PLAIN)
