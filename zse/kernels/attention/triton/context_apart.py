"""Attention of many new tokens over lines on Hopper: one warp fetches, two groups of warps compute.

Each group has 64 queries of its own. It asks for the scores of the next tokens together with the
products of the last weights and values, and computes its softmax beside these and beside what the
other group asked for. So it is written in the language below Triton, where a program says when it
waits for a product. The ways are those of FlashAttention-3 (Shah et al., arXiv:2407.08608).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from zse.kernels.triton.apart import wait_for_inputs

NOTHING = gl.constexpr(-1e30)
LOG2_E = gl.constexpr(1.4426950408889634)
HALF = gl.constexpr(64)
"""Queries of a group of warps."""


@gluon.jit
def masked(scores, start, position, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return scores with nothing where a token comes after the query."""
    token = start + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, LAYOUT))
    return gl.where(token[None, :] <= position[:, None], scores, NOTHING)


@gluon.jit
def fetch(keys, values, key_room, value_room, key_ready, value_ready, key_free, value_free,
          line, tiles, TOKENS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Have all tiles of keys and values come, each when its place is free."""
    for number in range(tiles):
        stage = number % STAGES
        phase = ((number // STAGES) & 1) ^ 1
        start = line + number * TOKENS
        mbarrier.wait(key_free.index(stage), phase)
        mbarrier.expect(key_ready.index(stage), keys.block_type.nbytes)
        tma.async_load(keys, [start, 0], key_ready.index(stage), key_room.index(stage))
        mbarrier.wait(value_free.index(stage), phase)
        mbarrier.expect(value_ready.index(stage), values.block_type.nbytes)
        tma.async_load(values, [start, 0], value_ready.index(stage), value_room.index(stage))


@gluon.jit
def attend(queries, outputs, key_room, value_room, key_ready, value_ready, key_free, value_free,
           first_row, num_rows, first_position, num_heads, head, tiles, factor,
           FIRST: gl.constexpr, HEAD_DIM: gl.constexpr, TOKENS: gl.constexpr,
           STAGES: gl.constexpr):  # fmt: skip
    """Attend with 64 queries of the tile, from FIRST on."""
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    sums_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, sums_layout, 2)
    rows_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    index = FIRST + gl.arange(0, HALF, layout=gl.SliceLayout(1, rows_layout))
    column = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, rows_layout))
    at = ((first_row + index)[:, None] * num_heads + head) * HEAD_DIM + column[None, :]
    loaded = gl.load(queries + at, mask=(index < num_rows)[:, None], other=0.0)
    query = gl.allocate_shared_memory(gl.bfloat16, [HALF, HEAD_DIM], shared, loaded)
    fence_async_shared()
    position = first_position + FIRST
    position += gl.arange(0, HALF, layout=gl.SliceLayout(1, scores_layout))
    nothing = gl.zeros([HALF, TOKENS], gl.float32, scores_layout)
    mbarrier.wait(key_ready.index(0), 0)
    scores = warpgroup_mma(query, key_room.index(0).permute((1, 0)), nothing, use_acc=False)
    mbarrier.arrive(key_free.index(0), count=1)
    if first_position + FIRST < TOKENS:
        scores = masked(scores, 0, position, TOKENS, scores_layout)
    largest = gl.max(scores, 1) * factor
    weights = gl.exp2(scores * factor - largest[:, None])
    total = gl.sum(weights, 1)
    operand = gl.convert_layout(weights.to(gl.bfloat16), weights_layout)
    attended = gl.zeros([HALF, HEAD_DIM], gl.float32, sums_layout)
    for number in range(1, tiles):
        stage = number % STAGES
        before = (number - 1) % STAGES
        mbarrier.wait(key_ready.index(stage), (number // STAGES) & 1)
        asked = warpgroup_mma(
            query, key_room.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        mbarrier.wait(value_ready.index(before), ((number - 1) // STAGES) & 1)
        added = warpgroup_mma(operand, value_room.index(before), attended, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(asked,))
        mbarrier.arrive(key_free.index(stage), count=1)
        if (number + 1) * TOKENS > first_position + FIRST:
            scores = masked(scores, number * TOKENS, position, TOKENS, scores_layout)
        new_largest = gl.maximum(largest, gl.max(scores, 1) * factor)
        weights = gl.exp2(scores * factor - new_largest[:, None])
        fade = gl.exp2(largest - new_largest)
        total = total * fade + gl.sum(weights, 1)
        largest = new_largest
        attended, operand = warpgroup_mma_wait(0, deps=(added, operand))
        mbarrier.arrive(value_free.index(before), count=1)
        fade = gl.convert_layout(fade, gl.SliceLayout(1, sums_layout))
        attended = attended * fade[:, None]
        operand = gl.convert_layout(weights.to(gl.bfloat16), weights_layout)
    last = tiles - 1
    mbarrier.wait(value_ready.index(last % STAGES), (last // STAGES) & 1)
    attended = warpgroup_mma(operand, value_room.index(last % STAGES), attended)
    whole = gl.convert_layout(total, gl.SliceLayout(1, sums_layout))
    result = gl.convert_layout((attended / whole[:, None]).to(gl.bfloat16), rows_layout)
    gl.store(outputs + at, result, mask=(index < num_rows)[:, None])


@gluon.jit
def context_prefill(
    queries, wide_keys, wide_values, tile_first_rows, tile_num_rows, tile_first_positions,
    tile_lines, outputs, num_lines, num_heads, kv_heads, scale,
    HEAD_DIM: gl.constexpr, QUERIES: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """As ``context.context_prefill``; QUERIES are 128."""
    wait_for_inputs(PDL)
    gl.static_assert(QUERIES == 2 * HALF)
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)
    first_row = gl.load(tile_first_rows + tile).to(gl.int64)
    num_rows = gl.load(tile_num_rows + tile)
    first_position = gl.load(tile_first_positions + tile)
    line = (head // (num_heads // kv_heads)) * num_lines + gl.load(tile_lines + tile)
    all_lines = kv_heads * num_lines
    keys = tma.make_tensor_descriptor(
        wide_keys, [all_lines, HEAD_DIM], [HEAD_DIM, 1], [TOKENS, HEAD_DIM], shared
    )
    values = tma.make_tensor_descriptor(
        wide_values, [all_lines, HEAD_DIM], [HEAD_DIM, 1], [TOKENS, HEAD_DIM], shared
    )
    key_room = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, HEAD_DIM], shared)
    value_room = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, HEAD_DIM], shared)
    key_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    key_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES):
        mbarrier.init(key_ready.index(place), count=1)
        mbarrier.init(value_ready.index(place), count=1)
        mbarrier.init(key_free.index(place), count=2)
        mbarrier.init(value_free.index(place), count=2)
    fence_async_shared()
    tiles = gl.cdiv(first_position + num_rows, TOKENS)
    factor = scale * LOG2_E
    gl.warp_specialize(
        [
            (attend, (queries, outputs, key_room, value_room, key_ready, value_ready, key_free,
                      value_free, first_row, num_rows, first_position, num_heads, head, tiles,
                      factor, 0, HEAD_DIM, TOKENS, STAGES)),
            (attend, (queries, outputs, key_room, value_room, key_ready, value_ready, key_free,
                      value_free, first_row, num_rows, first_position, num_heads, head, tiles,
                      factor, HALF, HEAD_DIM, TOKENS, STAGES)),
            (fetch, (keys, values, key_room, value_room, key_ready, value_ready, key_free,
                     value_free, line, tiles, TOKENS, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
