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
    tma,
    warpgroup_mma,
)

from zse.kernels import layout
from zse.kernels.linear.triton.apart import (
    HALF,
    STEP,
    WIDE,
    fetch,
    grouped_tile,
    make_room,
    multiply,
    scaled,
)
from zse.kernels.triton.apart import wait_for_inputs

GROUP = gl.constexpr(layout.ACTIVATION_GROUP)


@gluon.jit
def hold_signs():
    """Return Hadamard's matrix of 128 columns in shared memory; see ``rotate.signs``."""
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    held: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = gl.arange(0, GROUP, layout=gl.SliceLayout(1, held))
    column = gl.arange(0, GROUP, layout=gl.SliceLayout(0, held))
    odd = row[:, None] & column[None, :]
    odd ^= odd >> 4
    odd ^= odd >> 2
    odd ^= odd >> 1
    sign = (1 - 2 * (odd & 1)).to(gl.float32).to(gl.bfloat16)
    return gl.allocate_shared_memory(gl.bfloat16, [GROUP, GROUP], shared, sign)


@gluon.jit
def write_gates(token_scales, row_scales, outputs, maxima, sign, x_room, w_room, ready, free,
                tokens, width, tiles_m, groups, steps, FIRST: gl.constexpr, GROUPED: gl.constexpr,
                STAGES: gl.constexpr):  # fmt: skip
    """Multiply, gate, turn and write the tokens from FIRST on of all tiles of a program."""
    turned: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, GROUP, 16])
    rows_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    number = 0
    for tile in range(gl.program_id(0), tiles_m * groups, gl.num_programs(0)):
        tile_m, group = grouped_tile(tile, tiles_m, groups, GROUPED)
        total = multiply(x_room, w_room, ready, free, number, steps, FIRST, STAGES)
        number += steps
        first = tile_m * (2 * HALF) + FIRST
        m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, total.type.layout))
        column = gl.arange(0, WIDE, layout=gl.SliceLayout(0, total.type.layout))
        row = group * GROUP + column % GROUP + gl.where(column < GROUP, 0, width)
        value = scaled(total, token_scales, row_scales, m, row, tokens, 2 * width)
        gate, up = value.reshape((HALF, 2, GROUP)).permute((0, 2, 1)).split()
        gated = gate / (1.0 + gl.exp(-gl.maximum(gate, -80.0))) * up
        operand = gl.convert_layout(gated.to(gl.bfloat16), gl.DotOperandLayout(0, turned, 2))
        found = gl.zeros([HALF, GROUP], gl.float32, turned)
        found = warpgroup_mma(operand, sign, found, use_acc=False)
        m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, turned))
        gl.store(maxima + m * groups + group, gl.max(gl.abs(found), 1), mask=m < tokens)
        result = gl.convert_layout(found.to(gl.bfloat16), rows_layout)
        m = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, rows_layout))
        column = group * GROUP + gl.arange(0, GROUP, layout=gl.SliceLayout(0, rows_layout))
        at = outputs + m.to(gl.int64)[:, None] * width + column[None, :]
        gl.store(at, result, mask=(m < tokens)[:, None])


@gluon.jit
def turned_gates(values, token_scales, weights, row_scales, outputs, maxima, tokens, groups, steps,
                 GROUPED: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr):  # fmt: skip
    """Write silu(gate) * up of int8 [tokens, K] times int8 [2 * width, K], turned.

    Operands:
        values: int8 [tokens, K].
        token_scales: float32 [tokens].
        weights: int8 [2 * width, K], rows of gates, then rows of ups.
        row_scales: float32 [2 * width].
        outputs: bfloat16 [tokens, width].
        maxima: float32 [tokens, width / 128].
        tokens: Rows of the left side.
        groups: width / 128.
        steps: K / 128.
    """
    wait_for_inputs(PDL)
    width = groups * GROUP
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    shape = [tokens, steps * STEP]
    x_tiles = tma.make_tensor_descriptor(values, shape, [steps * STEP, 1], [2 * HALF, STEP], shared)
    shape = [2 * width, steps * STEP]
    w_tiles = tma.make_tensor_descriptor(weights, shape, [steps * STEP, 1], [GROUP, STEP], shared)
    x_room, w_room, ready, free = make_room(STAGES)
    sign = hold_signs()
    fence_async_shared()
    tiles_m = gl.cdiv(tokens, 2 * HALF)
    gl.warp_specialize(
        [
            (write_gates, (token_scales, row_scales, outputs, maxima, sign, x_room, w_room, ready,
                           free, tokens, width, tiles_m, groups, steps, 0, GROUPED, STAGES)),
            (write_gates, (token_scales, row_scales, outputs, maxima, sign, x_room, w_room, ready,
                           free, tokens, width, tiles_m, groups, steps, HALF, GROUPED, STAGES)),
            (fetch, (x_tiles, w_tiles, x_room, w_room, ready, free, tiles_m, groups, steps, width,
                     GROUP, GROUPED, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
