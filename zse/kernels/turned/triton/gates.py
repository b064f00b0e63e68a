"""Gates of many tokens by products of 8-bit numbers: silu(gate) * up leaves them, turned.

A program has a tile of gates and the tile of their ups, which meet in registers; so half as much is
written, and nobody reads it to multiply it. With each tile it leaves the largest magnitude of each
token: whoever rounds a row needs no look at all of it first. It is written for Hopper as
``linear.triton.apart`` is: while one group of warps gates and turns, the other still multiplies.
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

from zse.kernels import layout
from zse.kernels.linear.triton.apart import (
    HALF,
    STEP,
    WIDE,
    grouped_tile,
    make_room,
    multiply,
    scaled,
)
from zse.kernels.triton.apart import wait_for_inputs

GROUP = gl.constexpr(layout.ACTIVATION_GROUP)


@gluon.jit
def hold_signs(COLUMNS: gl.constexpr):
    """Return Hadamard's matrix of so many columns in shared memory; see ``rotate.signs``."""
    shared: gl.constexpr = gl.NVMMASharedLayout(min(2 * COLUMNS, 128), 16, 2)
    held: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, held))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, held))
    odd = row[:, None] & column[None, :]
    odd ^= odd >> 4
    odd ^= odd >> 2
    odd ^= odd >> 1
    sign = (1 - 2 * (odd & 1)).to(gl.float32).to(gl.bfloat16)
    return gl.allocate_shared_memory(gl.bfloat16, [COLUMNS, COLUMNS], shared, sign)


@gluon.jit
def make_more_room(EXTRA: gl.constexpr, STAGES: gl.constexpr):
    """Return shared memory for steps of what a tile has beside its group: EXTRA gates and ups."""
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    return gl.allocate_shared_memory(gl.int8, [STAGES, 2 * EXTRA, STEP], shared)


@gluon.jit
def fetch_gates(x_tiles, w_tiles, e_tiles, x_room, w_room, e_room, ready, free, tiles_m, tiles,
                steps, width, EXTRA: gl.constexpr, GROUPED: gl.constexpr,
                STAGES: gl.constexpr):  # fmt: skip
    """Have all steps of all tiles of a program come, each when its place is free."""
    expected: gl.constexpr = x_tiles.block_type.nbytes + 2 * w_tiles.block_type.nbytes
    more: gl.constexpr = 2 * e_tiles.block_type.nbytes if EXTRA else 0
    number = 0
    for tile in range(gl.program_id(0), tiles_m * tiles, gl.num_programs(0)):
        tile_m, group = grouped_tile(tile, tiles_m, tiles, GROUPED)
        m, row, beside = tile_m * (2 * HALF), group * GROUP, tiles * GROUP + group * EXTRA
        for step in range(steps):
            stage, k = number % STAGES, step * STEP
            place, bar = w_room.index(stage), ready.index(stage)
            mbarrier.wait(free.index(stage), ((number // STAGES) & 1) ^ 1)
            mbarrier.expect(bar, expected + more)
            tma.async_load(x_tiles, [m, k], bar, x_room.index(stage))
            tma.async_load(w_tiles, [row, k], bar, place.slice(0, GROUP))
            tma.async_load(w_tiles, [row + width, k], bar, place.slice(GROUP, GROUP))
            if EXTRA:
                place = e_room.index(stage)
                tma.async_load(e_tiles, [beside, k], bar, place.slice(0, EXTRA))
                tma.async_load(e_tiles, [beside + width, k], bar, place.slice(EXTRA, EXTRA))
            number += 1


@gluon.jit
def multiply_more(x_room, w_room, e_room, ready, free, number, steps, FIRST: gl.constexpr,
                  EXTRA: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """As ``multiply``, with the product int32 [64, 2 * EXTRA] of what is beside the group."""
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE // 2, 32])
    extra_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * EXTRA, 32])
    total = gl.zeros([HALF, WIDE], gl.int32, sums)
    more = gl.zeros([HALF, 2 * EXTRA], gl.int32, extra_sums)
    for step in range(steps):
        stage = number % STAGES
        mbarrier.wait(ready.index(stage), (number // STAGES) & 1)
        x = x_room.index(stage).slice(FIRST, HALF)
        asked = warpgroup_mma(x, w_room.index(stage).permute((1, 0)), total, is_async=True)
        beside = warpgroup_mma(x, e_room.index(stage).permute((1, 0)), more, is_async=True)
        total, more = warpgroup_mma_wait(2, deps=(asked, beside))
        before = (number + STAGES - 1) % STAGES
        mbarrier.arrive(free.index(before), count=1, pred=step > 0)
        number += 1
    total, more = warpgroup_mma_wait(0, deps=(total, more))
    mbarrier.arrive(free.index((number + STAGES - 1) % STAGES), count=1)
    return total, more


@gluon.jit
def turned_gated(total, sign, token_scales, row_scales, first, column, tokens, width):
    """Return silu(gate) * up of sums int32 [64, 2 * N], gates, then ups, times ``sign`` [N, N].

    ``column`` is the first one of the gates. The result is float32 [64, N].
    """
    half: gl.constexpr = total.shape[1] // 2
    turned: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, half, 16])
    m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, total.type.layout))
    place = gl.arange(0, 2 * half, layout=gl.SliceLayout(0, total.type.layout))
    row = column + place % half + gl.where(place < half, 0, width)
    value = scaled(total, token_scales, row_scales, m, row, tokens, 2 * width)
    gate, up = value.reshape((HALF, 2, half)).permute((0, 2, 1)).split()
    values = (gate / (1.0 + gl.exp(-gl.maximum(gate, -80.0))) * up).to(gl.bfloat16)
    operand = gl.convert_layout(values, gl.DotOperandLayout(0, turned, 2))
    found = gl.zeros([HALF, half], gl.float32, turned)
    return warpgroup_mma(operand, sign, found, use_acc=False)


@gluon.jit
def write_columns(outputs, values, first, column, tokens, width):
    """Write float32 [64, N] in 16 bits, the tokens from ``first`` on; nothing behind the width."""
    each: gl.constexpr = min(values.shape[1] // 8, 16)
    laid: gl.constexpr = gl.BlockedLayout([1, 8], [32 // each, each], [4, 1], [1, 0])
    result = gl.convert_layout(values.to(gl.bfloat16), laid)
    m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, laid))
    column += gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, laid))
    at = outputs + m.to(gl.int64)[:, None] * width + column[None, :]
    gl.store(at, result, mask=(m < tokens)[:, None] & (column < width)[None, :])


@gluon.jit
def write_gates(token_scales, row_scales, outputs, maxima, sign, few_signs, x_room, w_room, e_room,
                ready, free, tokens, width, tiles_m, tiles, groups, steps, FIRST: gl.constexpr,
                EXTRA: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Multiply, gate, turn and write the tokens from FIRST on of all tiles of a program."""
    number = 0
    for tile in range(gl.program_id(0), tiles_m * tiles, gl.num_programs(0)):
        tile_m, group = grouped_tile(tile, tiles_m, tiles, GROUPED)
        first = tile_m * (2 * HALF) + FIRST
        if EXTRA:
            total, more = multiply_more(
                x_room, w_room, e_room, ready, free, number, steps, FIRST, EXTRA, STAGES
            )
            column = tiles * GROUP + group * EXTRA
            found = turned_gated(
                more, few_signs, token_scales, row_scales, first, column, tokens, width
            )
            write_columns(outputs, found, first, column, tokens, width)
        else:
            total = multiply(x_room, w_room, ready, free, number, steps, FIRST, STAGES)
        number += steps
        column = group * GROUP
        found = turned_gated(total, sign, token_scales, row_scales, first, column, tokens, width)
        m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, found.type.layout))
        gl.store(maxima + m * groups + group, gl.max(gl.abs(found), 1), mask=m < tokens)
        write_columns(outputs, found, first, column, tokens, width)


@gluon.jit
def turned_gates(values, token_scales, weights, row_scales, outputs, maxima, tokens, groups, tiles,
                 steps, EXTRA: gl.constexpr, GROUPED: gl.constexpr, STAGES: gl.constexpr,
                 PDL: gl.constexpr):  # fmt: skip
    """Write silu(gate) * up of int8 [tokens, K] times int8 [2 * width, K], turned.

    The columns of ``groups`` behind the first ``tiles`` are divided among these, EXTRA each. These
    are turned by themselves, as Hadamard's matrix is one of these of EXTRA columns, whose signs are
    those of a smaller one: whoever rounds a row turns what is left.

    Operands:
        values: int8 [tokens, K].
        token_scales: float32 [tokens].
        weights: int8 [2 * width, K], rows of gates, then rows of ups.
        row_scales: float32 [2 * width].
        outputs: bfloat16 [tokens, width].
        maxima: float32 [tokens, width / 128], of the first ``tiles`` groups.
        tokens: Rows of the left side.
        groups: width / 128.
        tiles: Groups that have a tile of their own.
        steps: K / 128.
    """
    x_room, w_room, ready, free = make_room(STAGES)
    sign = hold_signs(GROUP)
    few_signs = sign
    if EXTRA:
        few_signs = hold_signs(EXTRA)
    fence_async_shared()
    wait_for_inputs(PDL)
    width = groups * GROUP
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    columns = steps * STEP
    x_tiles = tma.make_tensor_descriptor(
        values, [tokens, columns], [columns, 1], [2 * HALF, STEP], shared
    )
    w_tiles = tma.make_tensor_descriptor(
        weights, [2 * width, columns], [columns, 1], [GROUP, STEP], shared
    )
    tiles_m = gl.cdiv(tokens, 2 * HALF)
    e_tiles, e_room = w_tiles, w_room
    if EXTRA:
        e_tiles = tma.make_tensor_descriptor(
            weights, [2 * width, columns], [columns, 1], [EXTRA, STEP], shared
        )
        e_room = make_more_room(EXTRA, STAGES)
    gl.warp_specialize(
        [
            (write_gates, (token_scales, row_scales, outputs, maxima, sign, few_signs, x_room,
                           w_room, e_room, ready, free, tokens, width, tiles_m, tiles, groups,
                           steps, 0, EXTRA, GROUPED, STAGES)),
            (write_gates, (token_scales, row_scales, outputs, maxima, sign, few_signs, x_room,
                           w_room, e_room, ready, free, tokens, width, tiles_m, tiles, groups,
                           steps, HALF, EXTRA, GROUPED, STAGES)),
            (fetch_gates, (x_tiles, w_tiles, e_tiles, x_room, w_room, e_room, ready, free, tiles_m,
                           tiles, steps, width, EXTRA, GROUPED, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
