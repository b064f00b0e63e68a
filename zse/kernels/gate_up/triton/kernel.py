"""Activation of a matrix's product; where it is gated, of the gate half times the up half."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.layout import ACTIVATIONS
from zse.kernels.triton.parts import (
    GROUP,
    load_bias,
    store_activations,
    sum_partials,
    sum_two_partials,
    wait_for_inputs,
)

GELU = tl.constexpr(ACTIVATIONS.index("gelu"))
GELU_TANH = tl.constexpr(ACTIVATIONS.index("gelu_tanh"))
RELU2 = tl.constexpr(ACTIVATIONS.index("relu2"))
SWIGLU_OAI = tl.constexpr(ACTIVATIONS.index("swiglu_oai"))


@triton.jit
def times_sigmoid(values, slope):
    """Return the values times the sigmoid of the slope."""
    return values * tl.sigmoid(tl.maximum(slope, -80.0))  # keeps exp(-slope) finite


@triton.jit
def activated(values, activation):
    """Return what ``layout.ACTIVATIONS`` names by this number, of each value."""
    result = times_sigmoid(values, values)
    if activation == GELU:
        result = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    if activation == GELU_TANH:
        # 0.5 * (1 + tanh(y)) is sigmoid(2y), y = sqrt(2 / pi) * (x + 0.044715 x^3)
        slope = 1.5957691216057308 * values * (1.0 + 0.044715 * values * values)
        result = times_sigmoid(values, slope)
    if activation == SWIGLU_OAI:
        result = times_sigmoid(values, 1.702 * values)
    if activation == RELU2:
        result = tl.maximum(values, 0.0) * tl.maximum(values, 0.0)
    return result


@triton.jit
def activate_groups(
    inputs, bias, outputs, scales, sums, width, rows, splits, has_bias, activation, limit,
    GATED: tl.constexpr, FAMILY: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store activation(gate) * up, or activation(up), of some groups of one row.

    Program: (row, chunk of groups). Without FAMILY there is no bias, and the activation is silu.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < width
    halves: tl.constexpr = 2 if GATED else 1
    line = inputs + row * halves * width
    stride = rows.to(tl.int64) * halves * width
    if GATED:
        values, up = sum_two_partials(line, line + width, columns, inside, splits, stride)
    else:
        values = sum_partials(line, columns, inside, splits, stride)
    row_groups = tl.cdiv(width, GROUP)
    if FAMILY:
        values += load_bias(bias, columns, inside, has_bias)
        if GATED:
            up += load_bias(bias + width, columns, inside, has_bias)
            if activation == SWIGLU_OAI:
                values = tl.minimum(values, limit)
                up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        values = activated(values, activation)
    else:
        values = times_sigmoid(values, values)
    if GATED:
        values *= up
    store_activations(
        values,
        outputs + row * width,
        scales + row * row_groups,
        sums + row * row_groups,
        columns,
        groups,
        inside,
        groups < row_groups,
    )


@triton.jit
def silu_mul(
    inputs, outputs, scales, sums, width, rows, splits, GROUPS: tl.constexpr, PDL: tl.constexpr
):
    """Store silu(gate) * up; see ``activate_groups``."""
    activate_groups(inputs, scales, outputs, scales, sums, width, rows, splits, 0, 0, 0.0,
                    True, False, GROUPS, PDL)  # fmt: skip


@triton.jit
def activate(
    inputs, bias, outputs, scales, sums, width, rows, splits, has_bias, activation, limit,
    GATED: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store any activation with a bias, gated or not; see ``activate_groups``."""
    activate_groups(inputs, bias, outputs, scales, sums, width, rows, splits, has_bias, activation,
                    limit, GATED, True, GROUPS, PDL)  # fmt: skip


@triton.jit
def activate_times(
    inputs, factors, outputs, scales, sums, width, rows, splits, factor_columns, activation,
    GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store activation(inputs) * factors of some groups of one row. Program: (row, groups).

    Operands:
        inputs: float32 [splits, rows, width].
        factors: float32, ``factor_columns`` numbers from one row to the next.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < width
    stride = rows.to(tl.int64) * width
    values = sum_partials(inputs + row * width, columns, inside, splits, stride)
    times = tl.load(factors + row * factor_columns + columns, mask=inside, other=0.0)
    row_groups = tl.cdiv(width, GROUP)
    store_activations(
        activated(values, activation) * times,
        outputs + row * width,
        scales + row * row_groups,
        sums + row * row_groups,
        columns,
        groups,
        inside,
        groups < row_groups,
    )
