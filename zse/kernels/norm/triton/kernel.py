"""RMSNorm and LayerNorm of the residual stream."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import GROUP, load_bias, store_activations, sum_partials


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
def family_norm(
    residual, added, row_index, norm, norm_bias, added_bias, outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_norm_bias, has_added_bias,
    added_scale, output_scale, epsilon,
    GROUPS: tl.constexpr, LAYER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Do what ``residual_norm`` does, with what only some families have. Program: (row).

    A bias and a factor on what is added, LayerNorm (LAYER) with its bias, a factor on the result.
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
    if gathers != 0:
        source = tl.load(row_index + row).to(tl.int64)
    stream = residual + source * hidden
    values = tl.load(stream + columns, mask=inside, other=0.0)
    if splits > 0:
        stride = added_rows.to(tl.int64) * hidden
        total = sum_partials(added + source * hidden, columns, inside, splits, stride)
        values += (total + load_bias(added_bias, columns, inside, has_added_bias)) * added_scale
        if gathers == 0:
            tl.store(stream + columns, values, mask=inside)
    if LAYER:
        values -= tl.sum(tl.sum(values, axis=1), axis=0) / hidden
        values = tl.where(inside, values, 0.0)
    mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
    values = values * tl.rsqrt(mean + epsilon) * weight
    if LAYER:
        values += load_bias(norm_bias, columns, inside, has_norm_bias)
    row_groups = tl.cdiv(hidden, GROUP)
    store_activations(
        values * output_scale,
        outputs + row * hidden,
        scales + row * row_groups,
        sums + row * row_groups,
        columns,
        groups,
        inside,
        groups < row_groups,
    )
