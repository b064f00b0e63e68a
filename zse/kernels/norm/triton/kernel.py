"""RMSNorm of the residual stream, and int8 codes of plain activations."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton.parts import GROUP, store_activations, sum_partials


@triton.jit
def residual_norm(
    residual,
    added,
    row_index,
    norm,
    outputs,
    scales,
    sums,
    hidden,
    added_rows,
    splits,
    epsilon,
    GROUPS: tl.constexpr,
    GATHER: tl.constexpr,
    PDL: tl.constexpr,
):
    """Add pending sums to one row of the residual stream, normalize it, store activations.

    Program: (row). The norm's weight is fetched before the previous kernel has ended.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    weight = tl.load(norm + columns, mask=inside, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    source = row
    if GATHER:
        source = tl.load(row_index + row).to(tl.int64)
    stream = residual + source * hidden
    values = tl.load(stream + columns, mask=inside, other=0.0)
    if splits > 0:
        stride = added_rows.to(tl.int64) * hidden
        values += sum_partials(added + source * hidden, columns, inside, splits, stride)
        if not GATHER:
            tl.store(stream + columns, values, mask=inside)
    mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
    values = values * tl.rsqrt(mean + epsilon) * weight
    row_groups = tl.cdiv(hidden, GROUP)
    store_activations(
        values,
        outputs + row * hidden,
        scales + row * row_groups,
        sums + row * row_groups,
        columns,
        groups,
        inside,
        groups < row_groups,
    )


@triton.jit
def quantize(
    inputs,
    codes,
    scales,
    sums,
    columns,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Turn plain activations into int8 codes. Program: (row, chunk of GROUPS groups)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < columns
    values = tl.load(inputs + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    row_groups = columns // GROUP
    store_activations(
        values,
        codes + row * columns,
        scales + row * row_groups,
        sums + row * row_groups,
        column,
        groups,
        inside,
        groups < row_groups,
    )
