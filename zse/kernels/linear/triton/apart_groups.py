"""Products of int8 tokens that have a scale for each 128 columns, on Hopper; see ``apart``.

Sums are scaled after each step, so a program's two groups of warps take turns: while one scales,
the other one has the tensor cores.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from zse.kernels.linear.triton.apart import HALF, STEP, WIDE, fetch, grouped_tile, make_room
from zse.kernels.triton.apart import wait_for_inputs

GROUPED = gl.constexpr(8)
"""Tiles of tokens that share one of the matrix in the cache."""


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

    The scales of a step are asked for a step ahead.
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
                      tiles_m, tiles_n, steps, FIRST: gl.constexpr,
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
                                 N, tiles_m, tiles_n, blocks, 0, STAGES)),
            (write_group_tiles, (x_scales, row_scales, outputs, x_room, w_room, ready, free, rows,
                                 N, tiles_m, tiles_n, blocks, HALF, STAGES)),
            (fetch, (x_tiles, w_tiles, x_room, w_room, ready, free, tiles_m, tiles_n, 0, blocks,
                     GROUPED, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
