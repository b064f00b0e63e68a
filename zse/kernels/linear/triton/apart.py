"""Products of 8-bit numbers on Hopper: one warp fetches, two groups of warps multiply.

A program stays, tile after tile: its fetching warp is already at the next one while the others
write the last. It is written in the language below Triton, where a program says when it waits.
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

from zse.kernels.linear import weight as layout
from zse.kernels.triton.apart import wait_for_inputs

HALF = gl.constexpr(64)
"""Tokens of a group of warps."""
WIDE = gl.constexpr(256)
"""Rows of the matrix of a tile; an instruction takes half of them."""
STEP = gl.constexpr(128)
"""Columns of a step, in bytes what a row of shared memory's swizzle has."""
EVEN_ROWS = gl.constexpr(layout.EVEN_ROWS)


@gluon.jit
def grouped_tile(tile, tiles_m, tiles_n, GROUPED: gl.constexpr):
    """Return where a tile lies; see ``prefill.grouped_tile``."""
    band = tile // (GROUPED * tiles_n)
    first = band * GROUPED
    height = gl.minimum(tiles_m - first, GROUPED)
    inside = tile % (GROUPED * tiles_n)
    return first + inside % height, inside // height


@gluon.jit
def make_room(STAGES: gl.constexpr):
    """Return shared memory for STAGES steps of 128 tokens and of WIDE rows of a matrix.

    With it come the barriers that say that a step is there, and that its place is free again.
    """
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    x_room = gl.allocate_shared_memory(gl.int8, [STAGES, 2 * HALF, STEP], shared)
    w_room = gl.allocate_shared_memory(gl.int8, [STAGES, WIDE, STEP], shared)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES):
        mbarrier.init(ready.index(place), count=1)
        mbarrier.init(free.index(place), count=2)
    fence_async_shared()
    return x_room, w_room, ready, free


@gluon.jit
def fetch(x_tiles, w_tiles, x_room, w_room, ready, free, tiles_m, tiles_n, begin, end,
          GROUPED: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Have steps ``begin`` to ``end`` of all tiles of a program come, as places are free."""
    half: gl.constexpr = WIDE // 2
    number = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile(tile, tiles_m, tiles_n, GROUPED)
        m, row = tile_m * (2 * HALF), tile_n * WIDE
        for step in range(begin, end):
            stage = number % STAGES
            place, bar = w_room.index(stage), ready.index(stage)
            mbarrier.wait(free.index(stage), ((number // STAGES) & 1) ^ 1)
            mbarrier.expect(bar, x_tiles.block_type.nbytes + 2 * w_tiles.block_type.nbytes)
            tma.async_load(x_tiles, [m, step * STEP], bar, x_room.index(stage))
            tma.async_load(w_tiles, [row, step * STEP], bar, place.slice(0, half))
            tma.async_load(w_tiles, [row + half, step * STEP], bar, place.slice(half, half))
            number += 1


@gluon.jit
def multiply(x_room, w_room, ready, free, number, steps, FIRST: gl.constexpr,
             STAGES: gl.constexpr):  # fmt: skip
    """Return int32 [64, WIDE]: the product of a tile for the tokens from FIRST on.

    ``number`` counts the steps of the program before. A step is on its way while the last one ends.
    """
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE // 2, 32])
    total = gl.zeros([HALF, WIDE], gl.int32, sums)
    for step in range(steps):
        stage = number % STAGES
        mbarrier.wait(ready.index(stage), (number // STAGES) & 1)
        x = x_room.index(stage).slice(FIRST, HALF)
        weights = w_room.index(stage).permute((1, 0))
        asked = warpgroup_mma(x, weights, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=(asked,))
        before = (number + STAGES - 1) % STAGES
        mbarrier.arrive(free.index(before), count=1, pred=step > 0)
        number += 1
    total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(free.index((number + STAGES - 1) % STAGES), count=1)
    return total


@gluon.jit
def scaled(total, token_scales, row_scales, m, row, tokens, rows):
    """Return sums float32 [64, WIDE], by the scales of their tokens and rows."""
    token_scale = gl.load(token_scales + gl.minimum(m, tokens - 1))
    row_scale = gl.load(row_scales + gl.minimum(row, rows - 1))
    return total.to(gl.float32) * token_scale[:, None] * row_scale[None, :]


@gluon.jit
def write_tiles(token_scales, row_scales, outputs, x_room, w_room, ready, free, tokens, rows,
                stride, tiles_m, tiles_n, steps, FIRST: gl.constexpr, GROUPED: gl.constexpr,
                STAGES: gl.constexpr):  # fmt: skip
    """Multiply and write the tokens from FIRST on of all tiles of a program."""
    number = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile(tile, tiles_m, tiles_n, GROUPED)
        total = multiply(x_room, w_room, ready, free, number, steps, FIRST, STAGES)
        number += steps
        m = tile_m * (2 * HALF) + FIRST
        m += gl.arange(0, HALF, layout=gl.SliceLayout(1, total.type.layout))
        row = tile_n * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(0, total.type.layout))
        value = scaled(total, token_scales, row_scales, m, row, tokens, rows)
        at = outputs + m.to(gl.int64)[:, None] * stride + row[None, :]
        mask = (m < tokens)[:, None] & (row < rows)[None, :]
        gl.store(at, value.to(outputs.dtype.element_ty), mask=mask)


@gluon.jit
def matmul_8bit_apart(values, token_scales, weights, row_scales, outputs, tokens, rows, steps,
                      stride, BM: gl.constexpr, BN: gl.constexpr, GROUPED: gl.constexpr,
                      STAGES: gl.constexpr, PDL: gl.constexpr):  # fmt: skip
    """As ``prefill_8bit.matmul_8bit_split``; ``rows`` and ``stride`` are divided by EVEN_ROWS."""
    gl.static_assert((BM == 2 * HALF) & (BN == WIDE))
    x_room, w_room, ready, free = make_room(STAGES)
    wait_for_inputs(PDL)  # also for whoever still reads descriptors, which lie in memory
    rows = rows * EVEN_ROWS
    stride = stride * EVEN_ROWS
    half: gl.constexpr = WIDE // 2
    split, splits = gl.program_id(1), gl.num_programs(1)
    begin, end = steps * split // splits, steps * (split + 1) // splits
    outputs += split.to(gl.int64) * tokens * stride
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    shape = [tokens, steps * STEP]
    x_tiles = tma.make_tensor_descriptor(values, shape, [steps * STEP, 1], [2 * HALF, STEP], shared)
    shape = [rows, steps * STEP]
    w_tiles = tma.make_tensor_descriptor(weights, shape, [steps * STEP, 1], [half, STEP], shared)
    tiles_m, tiles_n = gl.cdiv(tokens, 2 * HALF), gl.cdiv(rows, WIDE)
    gl.warp_specialize(
        [
            (write_tiles, (token_scales, row_scales, outputs, x_room, w_room, ready, free, tokens,
                           rows, stride, tiles_m, tiles_n, end - begin, 0, GROUPED, STAGES)),
            (write_tiles, (token_scales, row_scales, outputs, x_room, w_room, ready, free, tokens,
                           rows, stride, tiles_m, tiles_n, end - begin, HALF, GROUPED, STAGES)),
            (fetch, (x_tiles, w_tiles, x_room, w_room, ready, free, tiles_m, tiles_n, begin, end,
                     GROUPED, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
