"""A few tokens times the matrices of their experts: each pair reads its expert's rows once."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.experts.triton.parts import Matrices, bias_of, matrix_of
from zse.kernels.linear.triton.decode import gemv_totals
from zse.kernels.linear.triton.parts import split_of_pieces, tile_rows
from zse.kernels.triton.parts import GROUP as ACTIVATION_GROUP
from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def input_row(codes, scales, sums, source, units, SCHEME: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the addresses of one row of activations, as ``gemv_totals`` reads them."""
    inputs: tl.tuple = ()
    if SCHEME == "16-bit":
        inputs += (codes + source.to(tl.int64) * units * COLUMNS,)
    else:
        first = source * tl.cdiv(units * COLUMNS, ACTIVATION_GROUP)
        inputs += (codes + source.to(tl.int64) * units * (COLUMNS // 4), scales + first)
        if SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2":
            inputs += (sums + first,)
    return inputs


@triton.jit
def pair_products(
    codes, scales, sums, weights, weight_scales, bias, experts, expert_weights, outputs,
    shared_weights, shared_scales, N, units, rows, slots, num_experts, has_bias, is_down,
    SCHEME: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr, R: tl.constexpr,
    T: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Multiply activations with the matrices [N, K] of the experts of each pair.

    Program: (tile of rows, split, pair). The matrices that go up (not ``is_down``) share one row of
    activations among the slots of a token and leave float32 [splits, rows * slots, N]. Those that
    go down have a row for each pair, and leave products times the pair's weight, as summands of
    each token: float32 [slots * splits, rows, N].

    Operands:
        codes: int32 words of int8, or bfloat16 for 16-bit weights.
        scales, sums: Of groups of 128 activations, float32.
        weights, weight_scales, bias, shared_weights, shared_scales, num_experts, has_bias: See
            ``Matrices``.
        experts: int32 [rows, slots].
        expert_weights: float32 [rows, slots].
        units: Units of a row of a matrix, PIECES pieces each.
    """
    wait_for_inputs(PDL)
    few: tl.constexpr = 3 if SCHEME == "int3" else (2 if SCHEME == "int2" else 4)
    each: tl.constexpr = 8 if SCHEME == "16-bit" else few
    columns: tl.constexpr = 8 if SCHEME == "16-bit" else PIECES * (32 if GROUP else 16)
    pair = tl.program_id(2)
    row = pair // slots
    slot = pair % slots
    expert = tl.load(experts + pair)
    matrices = Matrices(weights, weight_scales, bias, shared_weights, shared_scales, num_experts, N,
                        has_bias)  # fmt: skip
    matrix, matrix_scales = matrix_of(matrices, expert, units * (PIECES * each),
                                      units if GROUP else 1)  # fmt: skip
    inputs = input_row(codes, scales, sums, tl.where(is_down != 0, pair, row), units, SCHEME,
                       columns)  # fmt: skip
    begin, end = split_of_pieces(units * PIECES, C)
    n, held = tile_rows(N, R, T)
    totals, factor = gemv_totals(inputs, (pair * 0,), matrix, matrix_scales, held, begin, end,
                                 units, SCHEME, GROUP, PIECES, 1, R, T, C, False,
                                 PLAIN)  # fmt: skip
    split = tl.program_id(1)
    total = tl.sum(totals[0] * factor, 2) + bias_of(matrices, expert, n, split == 0)
    splits = tl.num_programs(1)
    line = split * rows * slots + pair
    if is_down != 0:
        total *= tl.load(expert_weights + pair)
        line = (slot * splits + split) * rows + row
    tl.store(outputs + line.to(tl.int64) * N + n, total, mask=n < N)
