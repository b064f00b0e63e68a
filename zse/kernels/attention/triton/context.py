"""Attention of many new tokens over keys and values that lie in a row.

The paged cache is copied once a layer, from whatever type it has, to bfloat16 lines head by head.
Attention reads each of them for every tile of queries and every head of a group; so it pays to look
blocks up and to undo their rounding once, and the copy engine can bring whole tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels import layout
from zse.kernels.attention.triton.parts import (
    LOG2_E,
    NOTHING,
    Softmax,
    decode,
    dot,
    load_stored,
)
from zse.kernels.rope_store.triton.heads import BLOCK_TOKENS, Stored
from zse.kernels.triton.parts import to_bf16, wait_for_inputs

ENTRY = tl.constexpr(layout.CONTEXT_ENTRY)


@triton.jit
def store_line(cache, lines, seen, target, HEAD_DIM: tl.constexpr):
    """Copy a block of one head's keys or values to bfloat16 lines; zeros where it is no block."""
    stored = load_stored(cache, lines, seen, 0, HEAD_DIM, HEAD_DIM, HEAD_DIM, True)
    column = tl.arange(0, HEAD_DIM)
    at = target + tl.arange(0, BLOCK_TOKENS)[:, None] * HEAD_DIM + column[None, :]
    tl.store(at, decode(stored))


@triton.jit
def gather_context(
    keys, values, key_scales, value_scales, blocks, wide_keys, wide_values, num_blocks, kv_heads,
    HEAD_DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy blocks of the cache to lines that follow each other. Program: (block, head).

    Operands:
        keys, values, key_scales, value_scales: The paged cache.
        blocks: int32 [num_blocks], in order: the block of the cache times ENTRY, plus how many of
            its tokens there are. The others become zeros.
        wide_keys, wide_values: bfloat16 [kv_heads, num_blocks * 32, D].
    """
    wait_for_inputs(PDL)
    number = tl.program_id(0)
    head = tl.program_id(1)
    entry = tl.load(blocks + number)
    line = ((entry // ENTRY).to(tl.int64) * kv_heads + head) * BLOCK_TOKENS
    tokens = tl.arange(0, BLOCK_TOKENS)
    lines = line + tokens
    seen = tokens < entry % ENTRY
    first = (head.to(tl.int64) * num_blocks + number) * (BLOCK_TOKENS * HEAD_DIM)
    store_line(Stored(keys, key_scales), lines, seen, wide_keys + first, HEAD_DIM)
    store_line(Stored(values, value_scales), lines, seen, wide_values + first, HEAD_DIM)


@triton.jit
def attend_lines(
    query, position, softmax, keys, values, line, first, last, scale,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Return the ``Softmax`` of queries [Q, D] after tokens ``first`` to ``last``.

    Scores are taken to base 2 and to their largest one in one multiplication with an addition.

    Args:
        query: Of ``position``, int32 [Q].
        softmax: What is known of tokens before.
        keys: Descriptor of all keys.
        values: The same of values.
        line: Of the sequence's first token.
        first: A multiple of TOKENS; so many lines behind ``last`` may be read.
        last: Where to end.
        scale: Factor on products; scores to base 2.
        TOKENS: At a time.
        STAGES: Tiles on their way.
        MASKED: Without it every query sees every token.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.
    """
    largest, total, attended = softmax
    for start in tl.range(first, last, TOKENS, num_stages=STAGES):
        key = keys.load([line + start, 0])
        scores = tl.zeros((query.shape[0], TOKENS), tl.float32)
        scores = dot(query, tl.trans(key), scores, PLAIN)
        if MASKED:
            seen = (start + tl.arange(0, TOKENS))[None, :] <= position[:, None]
            scores = tl.where(seen, scores, NOTHING)
        new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, 1)
        attended = attended * fade[:, None]
        value = values.load([line + start, 0])
        attended = dot(to_bf16(weights, PLAIN), value, attended, PLAIN)
        largest = new_largest
    return Softmax(largest, total, attended)


@triton.jit
def context_prefill(
    queries, wide_keys, wide_values, tile_first_rows, tile_num_rows, tile_first_positions,
    tile_lines, outputs, num_lines, num_heads, kv_heads, scale,
    HEAD_DIM: tl.constexpr, QUERIES: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Attend with up to QUERIES consecutive tokens of one sequence. Program: (head, tile).

    Tiles are taken from the last, where sequences are longest, so that no long one starts late.

    Operands:
        queries: bfloat16 [rows, num_heads, D].
        wide_keys, wide_values: As ``gather_context`` leaves them, num_lines a head.
        tile_first_rows, tile_num_rows, tile_first_positions: int32, of each tile.
        tile_lines: int32, the line of the first token of each tile's sequence. Behind a sequence
            lie as many numbers as a tile of tokens may reach over its end.
        outputs: As queries.
    """
    wait_for_inputs(PDL)
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    first_row = tl.load(tile_first_rows + tile).to(tl.int64)
    num_rows = tl.load(tile_num_rows + tile)
    first_position = tl.load(tile_first_positions + tile)
    line = (head // (num_heads // kv_heads)) * num_lines + tl.load(tile_lines + tile)
    all_lines = kv_heads * num_lines
    keys = tl.make_tensor_descriptor(
        wide_keys, [all_lines, HEAD_DIM], [HEAD_DIM, 1], [TOKENS, HEAD_DIM]
    )
    values = tl.make_tensor_descriptor(
        wide_values, [all_lines, HEAD_DIM], [HEAD_DIM, 1], [TOKENS, HEAD_DIM]
    )
    index = tl.arange(0, QUERIES)
    column = tl.arange(0, HEAD_DIM)
    at = ((first_row + index)[:, None] * num_heads + head) * HEAD_DIM + column[None, :]
    mask = (index < num_rows)[:, None] & (column >= 0)[None, :]
    query = tl.load(queries + at, mask=mask, other=0.0)
    position = first_position + index
    softmax = Softmax(
        tl.full((QUERIES,), NOTHING, tl.float32),
        tl.zeros((QUERIES,), tl.float32),
        tl.zeros((QUERIES, HEAD_DIM), tl.float32),
    )
    masked_from = first_position // TOKENS * TOKENS  # every query sees the tokens before it
    factor = scale * LOG2_E
    softmax = attend_lines(
        query, position, softmax, keys, values, line, 0, masked_from, factor,
        TOKENS, STAGES, False, PLAIN,
    )  # fmt: skip
    softmax = attend_lines(
        query, position, softmax, keys, values, line, masked_from, first_position + num_rows,
        factor, TOKENS, STAGES, True, PLAIN,
    )  # fmt: skip
    tl.store(outputs + at, to_bf16(softmax.attended / softmax.total[:, None], PLAIN), mask=mask)
