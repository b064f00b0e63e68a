"""Flash attention (arXiv 2205.14135) over the blocks that a mask names; no score is stored."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

NOTHING = tl.constexpr(-1.0e30)
"""Score of a pair that is not seen: finite, so that a row of them alone gives no NaN."""
LOG2_E = 1.4426950408889634
RULED = tl.constexpr(2)
"""See ``zse.sparse.layout.Seen``."""


class Rules(NamedTuple):
    """What is seen of the blocks that are not seen whole, and the factor on products."""

    window: int
    num_global: int
    is_causal: bool
    scale: float


@triton.jit
def attend_some(
    query, position, state, first, last, columns, kinds, keys, values, length, rules,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Return (largest score, total, attended) after the blocks ``first`` to ``last`` of the list.

    Without MASKED all pairs of a block are seen. ``rules``: the window, how many tokens are global.
    """
    largest, total, attended = state
    window, num_global = rules
    column = tl.arange(0, WIDTH)
    for index in tl.range(first, last):
        token = tl.load(columns + index) * BLOCK + tl.arange(0, BLOCK)
        places = token[:, None].to(tl.int64) * HEAD_DIM + column[None, :]
        stored = (token[:, None] < length) & (column[None, :] < HEAD_DIM)
        key = tl.load(keys + places, stored, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if MASKED:
            distance = position[:, None] - token[None, :]
            seen = tl.where(distance < 0, -distance, distance) < window
            seen = seen | (token[None, :] < num_global)
            inside = (token[None, :] < length) & (position[:, None] >= 0)
            if CAUSAL:
                inside = inside & (distance >= 0)
            else:
                seen = seen | (position[:, None] < num_global)
            seen = inside & (seen | (tl.load(kinds + index) != RULED))
            scores = tl.where(seen, scores, NOTHING)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        if MASKED:
            weights = tl.where(scores > NOTHING, weights, 0.0)
        fade = tl.exp2(largest - new_largest)
        value = tl.load(values + places, stored, other=0.0)
        attended = attended * fade[:, None]
        attended = tl.dot(weights.to(value.dtype), value, attended, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        largest = new_largest
    return largest, total, attended


@triton.jit
def attend_row(
    queries, keys, values, output, row_starts, masked_starts, columns, kinds,
    length, num_heads, group, window, num_global, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Attend with a block of queries of one head. Program: (block from the last, head of a text).

    ``scale`` makes scores logarithms to base 2.
    """
    row = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    kv_head = head // num_heads * (num_heads // group) + head % num_heads // group
    position = row * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    places = (head * length + position)[:, None] * HEAD_DIM + column[None, :]
    stored = (position[:, None] < length) & (column[None, :] < HEAD_DIM)
    query = tl.load(queries + places, stored, other=0.0)
    query = (query.to(tl.float32) * scale).to(query.dtype)
    first = kv_head * length * HEAD_DIM
    begin, middle = tl.load(row_starts + row), tl.load(masked_starts + row)
    end = tl.load(row_starts + row + 1)
    largest = tl.full((BLOCK,), NOTHING, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    attended = tl.zeros((BLOCK, WIDTH), tl.float32)
    state = (largest, total, attended)
    state = attend_some(
        query, position, state, begin, middle, columns, kinds, keys + first, values + first,
        length, (window, num_global), HEAD_DIM, WIDTH, BLOCK, CAUSAL, False,
    )  # fmt: skip
    largest, total, attended = attend_some(
        query, position, state, middle, end, columns, kinds, keys + first, values + first,
        length, (window, num_global), HEAD_DIM, WIDTH, BLOCK, CAUSAL, True,
    )  # fmt: skip
    attended = attended / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(output + places, attended.to(output.dtype.element_ty), stored)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    block_size: int,
    rules: Rules,
) -> torch.Tensor:
    """Return attention over blocks, of the shape and type of ``query``.

    Args:
        query: [batch, heads, length, head_dim].
        key: [batch, kv_heads, length, head_dim].
        value: As ``key``.
        blocks: Row starts [rows + 1], where masked ones start [rows], columns and kinds [seen
            blocks], int32; see ``zse.sparse.masks.BlockMask``.
    """
    batch, heads, length, head_dim = query.shape
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    output = torch.empty_like(query)
    row_starts, masked_starts, columns, kinds = blocks
    attend_row[(len(masked_starts), batch * heads)](
        query, key, value, output, row_starts, masked_starts, columns, kinds,
        length, heads, heads // key.shape[1], rules.window, rules.num_global,
        rules.scale * LOG2_E,
        HEAD_DIM=head_dim, WIDTH=max(triton.next_power_of_2(head_dim), 16), BLOCK=block_size,
        CAUSAL=rules.is_causal, num_warps=8 if block_size == 128 else 4, num_stages=2,
    )  # fmt: skip
    return output
