"""Activation of the gate half times the up half."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton.parts import GROUP, store_activations, sum_two_partials


@triton.jit
def activate(gate, ACTIVATION: tl.constexpr):
    """Return silu, or GELU in its tanh form: both are the input times a sigmoid."""
    if ACTIVATION == "gelu":
        # 0.5 * (1 + tanh(y)) is sigmoid(2y), y = sqrt(2 / pi) * (x + 0.044715 x^3)
        slope = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
    else:
        slope = gate
    return gate * tl.sigmoid(tl.maximum(slope, -80.0))  # keeps exp(-slope) finite


@triton.jit
def silu_mul(
    inputs,
    outputs,
    scales,
    sums,
    width,
    rows,
    splits,
    ACTIVATION: tl.constexpr,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store activation(gate) * up of some groups of one row. Program: (row, chunk of groups)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < width
    line = inputs + row * 2 * width
    stride = rows.to(tl.int64) * 2 * width
    gate, up = sum_two_partials(line, line + width, columns, inside, splits, stride)
    row_groups = tl.cdiv(width, GROUP)
    store_activations(
        activate(gate, ACTIVATION) * up,
        outputs + row * width,
        scales + row * row_groups,
        sums + row * row_groups,
        columns,
        groups,
        inside,
        groups < row_groups,
    )
