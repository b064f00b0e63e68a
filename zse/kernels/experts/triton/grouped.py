"""Many tokens times the matrices of their experts on tensor cores, those of one expert together."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.experts.triton.parts import Matrices, bias_of, matrix_of
from zse.kernels.linear.triton.batch import four_bit_total, whole_total
from zse.kernels.triton.parts import to_bf16, wait_for_inputs


@triton.jit
def tile_of_pairs(starts, groups, BM: tl.constexpr, EXPERTS: tl.constexpr):
    """Return this program's expert, the place of its first pair, and the end of the expert's.

    An expert's tiles begin at its number plus the whole tiles before its first pair. That leaves
    at least as many as it needs, is found without a sum over all experts, and what is left over
    begins behind the expert's end.
    """
    tile = tl.program_id(1)
    index = tl.arange(0, EXPERTS)
    exists = index < groups
    before = tl.load(starts + index, mask=exists, other=0) // BM + index
    expert = tl.sum((exists & (before <= tile)).to(tl.int32), 0) - 1
    start = tl.load(starts + expert)
    return expert, start + (tile - expert - start // BM) * BM, tl.load(starts + expert + 1)


@triton.jit
def grouped_products(
    values, weights, weight_scales, bias, order, starts, outputs, shared_weights, shared_scales,
    N, units, slots, num_experts, groups, has_bias, is_down,
    SCHEME: tl.constexpr, GROUP: tl.constexpr, UNIT: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, STAGES: tl.constexpr, EXPERTS: tl.constexpr, PDL: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Write bfloat16 [pairs, N]: rows of activations times the matrices [N, K] of their experts.

    Program: (tile of rows of the matrix, tile of pairs of one expert).

    Operands:
        values: bfloat16, a row for each token, or for each pair where ``is_down`` says so.
        weights, weight_scales, bias, shared_weights, shared_scales, num_experts, has_bias: See
            ``Matrices``.
        order: int32 [pairs], numbers of pairs in the order of their experts.
        starts: int32 [groups + 1], where those of each expert begin.
        units: K / UNIT; UNIT is GROUP where the scheme has groups.
        slots: Pairs of a token.
        groups: Experts that may have pairs, the shared one among them.
    """
    wait_for_inputs(PDL)
    expert, first, end = tile_of_pairs(starts, groups, BM, EXPERTS)
    if first < end:
        place = first + tl.arange(0, BM)
        pair = tl.load(order + tl.minimum(place, end - 1))
        token = tl.where(is_down != 0, pair, pair // slots)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        held = tl.minimum(n, N - 1)
        matrices = Matrices(weights, weight_scales, bias, shared_weights, shared_scales,
                            num_experts, N, has_bias)  # fmt: skip
        few: tl.constexpr = UNIT * 3 // 8 if SCHEME == "int3" else UNIT // 4
        packed: tl.constexpr = few if SCHEME == "int3" or SCHEME == "int2" else UNIT // 2
        elements: tl.constexpr = packed if GROUP else UNIT
        matrix, matrix_scales = matrix_of(matrices, expert, units * elements,
                                          units if GROUP else 1)  # fmt: skip
        if GROUP:
            total = four_bit_total(values, matrix_scales, matrix_scales, matrix, matrix_scales,
                                   held, token, 0, units, units, UNIT, SCHEME, GROUP, BN, BM,
                                   STAGES, False, PLAIN)  # fmt: skip
        else:
            total = whole_total(values, matrix_scales, matrix, matrix_scales, held, token, 0, units,
                                units, SCHEME, BN, BM, UNIT, STAGES, False, PLAIN)  # fmt: skip
        total += bias_of(matrices, expert, n, expert >= 0)[:, None]
        at = outputs + pair.to(tl.int64)[None, :] * N + n[:, None]
        tl.store(at, to_bf16(total, PLAIN), mask=(n < N)[:, None] & (place < end)[None, :])


@triton.jit
def combine(
    residual, pairs, expert_weights, shared, hidden, slots, shared_rows, shared_splits,
    shared_slot, adds, scale, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add what a token's experts made to the residual stream, in the order of the slots.

    Program: (row, chunk of columns).

    Operands:
        residual: float32 [rows, hidden], changed in place; or what is added alone goes there
            (``adds`` is 0).
        pairs: bfloat16 [rows, slots + shared_slot, hidden].
        expert_weights: float32 [rows, slots + shared_slot].
        shared: float32 [shared_splits, shared_rows, hidden]: summands of an expert of another
            width, whose weight is the last one (``shared_slot`` is 1); not read if there is none.
        scale: Multiplies all that is added.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < hidden
    at = residual + row * hidden + column
    stream = tl.load(at, mask=inside & (column * 0 + adds > 0), other=0.0)
    first = row * (slots + shared_slot)
    row_weights = expert_weights + first
    total = tl.zeros((COLUMNS,), tl.float32)
    for slot in range(slots):
        value = tl.load(pairs + (first + slot) * hidden + column, mask=inside, other=0.0)
        total += value.to(tl.float32) * tl.load(row_weights + slot)
    if shared_slot != 0:
        weight = tl.load(row_weights + slots)
        for split in range(shared_splits):
            line = (split * shared_rows + row) * hidden
            total += tl.load(shared + line + column, mask=inside, other=0.0) * weight
    tl.store(at, stream + total * scale, mask=inside)
