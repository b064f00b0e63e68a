"""Products up of some tokens' experts, as ``direct`` makes them, with what gates them behind.

A program has rows of the gate and the rows of the other half that they meet, in the same threads.
So what goes down is rounded to int8 where it is made: a tile is a group of 128 columns.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda

from zse.kernels.experts.triton.direct import expert_total, spread, tile_of
from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.linear.triton.direct import loaded

COLUMNS = gl.constexpr(ACTIVATION_GROUP)
ROUNDING_SHIFT = gl.constexpr(12582912.0)  # 1.5 * 2**23: adding it leaves no bits below the point


@gluon.jit
def gated(gate, up, limit, ACTIVATION: gl.constexpr):
    """Return what ``gate_up`` makes of both halves: silu, or that of gpt-oss."""
    slope = gate
    if ACTIVATION == "swiglu_oai":
        gate = gl.minimum(gate, limit)
        up = gl.minimum(gl.maximum(up, -limit), limit) + 1.0
        slope = 1.702 * gate
    return gate / (1.0 + gl.exp(-gl.maximum(slope, -80.0))) * up


@gluon.jit
def direct_gates(codes, x_scales, x_sums, weights, weight_scales, bias, order, starts,
                 outputs, scales, output_sums, shared_weights, shared_scales, width, units, rows,
                 slots, num_experts, groups, has_bias, limit,
                 SCHEME: gl.constexpr, ACTIVATION: gl.constexpr, BM: gl.constexpr,
                 DEPTH: gl.constexpr, EXPERTS: gl.constexpr, PAIRS: gl.constexpr,
                 PDL: gl.constexpr):  # fmt: skip
    """Write int8 [rows * slots, width]: activation(gate) * up of the experts of each pair.

    Program: (group of 128 columns of the result, tile of pairs of one expert, or a pair). For
    what is not named here see ``direct_products``.

    Operands:
        weights, weight_scales, bias: Of matrices [2 * width, K], the gate's rows first.
        outputs, scales, output_sums: Where activations go.
        limit: Bound of ``swiglu_oai``.
    """
    warps: gl.constexpr = gl.num_warps()
    height: gl.constexpr = 2 * COLUMNS
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    held: gl.constexpr = (
        loaded(height, warps, False) if SCHEME == "int4" else spread(height, warps, False)
    )
    taken: gl.constexpr = loaded(BM, warps, True) if SCHEME == "int4" else spread(BM, warps, True)
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    token = gl.arange(0, BM, layout=gl.SliceLayout(1, taken))
    place = gl.arange(0, BM, layout=gl.SliceLayout(0, sums))
    expert, count, token_pair, pair = tile_of(order, starts, rows * slots, groups, token, place,
                                              BM, EXPERTS, PAIRS)  # fmt: skip
    if count > 0:
        at = gl.program_id(0) * COLUMNS
        index = gl.arange(0, height, layout=gl.SliceLayout(1, held))
        row = gl.minimum(at + index % COLUMNS, width - 1) + index // COLUMNS * width
        index = gl.arange(0, height, layout=gl.SliceLayout(1, sums))
        n = gl.minimum(at + index % COLUMNS, width - 1) + index // COLUMNS * width
        first_row = expert.to(gl.int64) * (2 * width)
        is_shared = expert == num_experts
        total = expert_total(codes, x_scales, x_sums, weights, weight_scales, shared_weights,
                             shared_scales, first_row, is_shared, units, row, n,
                             token_pair // slots, pair // slots,
                             SCHEME, height, BM, DEPTH, sums, held, taken)  # fmt: skip
        wanted = gl.where(is_shared, 0, has_bias)
        total += gl.load(bias + first_row + n, mask=n * 0 + wanted > 0, other=0.0)[:, None]
        gate, up = gl.split(total.reshape((2, COLUMNS, BM)).permute((1, 2, 0)))
        gate, up = gl.convert_layout(gate, sums), gl.convert_layout(up, sums)
        column = at + gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, sums))
        values = gated(gate, up, limit, ACTIVATION)
        values = gl.where((column < width)[:, None], values, 0.0)
        largest = gl.max(gl.abs(values), 0)
        inverse = 127.0 / gl.where(largest > 0.0, largest, 1.0)  # zeros stay zeros
        rounded = (values * inverse[None, :] + ROUNDING_SHIFT) - ROUNDING_SHIFT
        own = place < count
        out = outputs + (pair * width)[None, :] + column[:, None]
        gl.store(out, rounded.to(gl.int8), mask=(column < width)[:, None] & own[None, :])
        group = pair * gl.cdiv(width, COLUMNS) + gl.program_id(0)
        gl.store(scales + group, largest / 127.0, mask=own)
        gl.store(output_sums + group, largest / 127.0 * gl.sum(rounded, 0), mask=own)
