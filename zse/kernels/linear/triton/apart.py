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


@gluon.jit
def add_product(total, x, weights, x_scale):
    """Return ``total`` float32 [64, WIDE / 2] plus one step's product, by its tokens' scales."""
    sums: gl.constexpr = total.type.layout
    found = gl.zeros([HALF, WIDE // 2], gl.int32, sums)
    found = warpgroup_mma(x, weights.permute((1, 0)), found, use_acc=False, is_async=True)
    found = warpgroup_mma_wait(0, deps=(found,))
    return total + found.to(gl.float32) * x_scale[:, None]


@gluon.jit
def multiply_groups(x_room, w_room, ready, free, x_scales, m, number, tokens, steps,
                    FIRST: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Return float32 [64, WIDE / 2] twice: the products of a tile for the tokens ``m``.

    Tokens have a scale for each step. While a group of warps multiplies by them, the other one has
    the tensor cores.
    """
    half: gl.constexpr = WIDE // 2
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, half, 32])
    left = gl.zeros([HALF, half], gl.float32, sums)
    right = gl.zeros([HALF, half], gl.float32, sums)
    scale_at = x_scales + gl.minimum(m, tokens - 1) * steps
    following = gl.load(scale_at)
    for step in range(steps):
        x_scale = following
        following = gl.load(scale_at + gl.minimum(step + 1, steps - 1))
        stage = number % STAGES
        mbarrier.wait(ready.index(stage), (number // STAGES) & 1)
        x, weights = x_room.index(stage).slice(FIRST, HALF), w_room.index(stage)
        left = add_product(left, x, weights.slice(0, half), x_scale)
        right = add_product(right, x, weights.slice(half, half), x_scale)
        mbarrier.arrive(free.index(stage), count=1)
        number += 1
    return left, right


@gluon.jit
def write_half(outputs, total, row_scales, m, row, tokens, rows):
    """Write sums float32 [64, WIDE / 2] by the scales of their rows, from ``row`` on."""
    row += gl.arange(0, WIDE // 2, layout=gl.SliceLayout(0, total.type.layout))
    value = total * gl.load(row_scales + gl.minimum(row, rows - 1))[None, :]
    at = outputs + m.to(gl.int64)[:, None] * rows + row[None, :]
    gl.store(at, value, mask=(m < tokens)[:, None] & (row < rows)[None, :])


@gluon.jit
def write_group_tiles(x_scales, row_scales, outputs, x_room, w_room, ready, free, tokens, rows,
                      tiles_m, tiles_n, steps, FIRST: gl.constexpr, GROUPED: gl.constexpr,
                      STAGES: gl.constexpr):  # fmt: skip
    """Multiply and write the tokens from FIRST on of all tiles of a program."""
    half: gl.constexpr = WIDE // 2
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, half, 32])
    number = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = grouped_tile(tile, tiles_m, tiles_n, GROUPED)
        m = tile_m * (2 * HALF) + FIRST + gl.arange(0, HALF, layout=gl.SliceLayout(1, sums))
        left, right = multiply_groups(
            x_room, w_room, ready, free, x_scales, m, number, tokens, steps, FIRST, STAGES
        )
        number += steps
        write_half(outputs, left, row_scales, m, tile_n * WIDE, tokens, rows)
        write_half(outputs, right, row_scales, m, tile_n * WIDE + half, tokens, rows)


@gluon.jit
def imma_int8_apart(codes, x_scales, weights, row_scales, outputs, rows, N, blocks,
                    BN: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr,
                    PDL: gl.constexpr):  # fmt: skip
    """As ``batch.imma_int8``, by programs that stay; without splits."""
    gl.static_assert((BM == 2 * HALF) & (BN == WIDE))
    x_room, w_room, ready, free = make_room(STAGES)
    wait_for_inputs(PDL)
    half: gl.constexpr = WIDE // 2
    grouped: gl.constexpr = 8
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    columns = blocks * STEP
    x_tiles = tma.make_tensor_descriptor(
        codes, [rows, columns], [columns, 1], [2 * HALF, STEP], shared
    )
    w_tiles = tma.make_tensor_descriptor(weights, [N, columns], [columns, 1], [half, STEP], shared)
    tiles_m, tiles_n = gl.cdiv(rows, 2 * HALF), gl.cdiv(N, WIDE)
    gl.warp_specialize(
        [
            (write_group_tiles, (x_scales, row_scales, outputs, x_room, w_room, ready, free, rows,
                                 N, tiles_m, tiles_n, blocks, 0, grouped, STAGES)),
            (write_group_tiles, (x_scales, row_scales, outputs, x_room, w_room, ready, free, rows,
                                 N, tiles_m, tiles_n, blocks, HALF, grouped, STAGES)),
            (fetch, (x_tiles, w_tiles, x_room, w_room, ready, free, tiles_m, tiles_n, 0, blocks,
                     grouped, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
