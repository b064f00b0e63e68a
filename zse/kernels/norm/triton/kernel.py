"""RMSNorm and LayerNorm of the residual stream."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import GROUP, load_bias, store_activations, sum_partials


@triton.jit
def norm_row(
    residual, added, row_index, norm, norm_bias, added_bias, outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_norm_bias, has_added_bias,
    added_scale, output_scale, epsilon,
    GROUPS: tl.constexpr, LAYER: tl.constexpr, FAMILY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add pending sums to one row of the residual stream, normalize it, store activations.

    Program: (row). The norm's weight is fetched before the previous kernel has ended. What only
    some families have is looked at where FAMILY says so: a bias and a factor on what is added, a
    bias of the norm, a factor on the result.
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
        if FAMILY:
            total += load_bias(added_bias, columns, inside, has_added_bias)
            total *= added_scale
        values += total
        if gathers == 0:
            tl.store(stream + columns, values, mask=inside)
    if LAYER:
        values -= tl.sum(tl.sum(values, axis=1), axis=0) / hidden
        values = tl.where(inside, values, 0.0)
    mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
    values = values * tl.rsqrt(mean + epsilon) * weight
    if FAMILY:
        values += load_bias(norm_bias, columns, inside, has_norm_bias)
        values *= output_scale
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
def residual_norm(
    residual, added, row_index, norm, outputs, scales, sums,
    hidden, added_rows, splits, epsilon,
    GROUPS: tl.constexpr, GATHER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add and store the RMSNorm; see ``norm_row``."""
    norm_row(residual, added, row_index, norm, norm, norm, outputs, scales, sums, hidden,
             added_rows, splits, GATHER, 0, 0, 1.0, 1.0, epsilon,
             GROUPS, False, False, PDL)  # fmt: skip


@triton.jit
def family_norm(
    residual, added, row_index, norm, norm_bias, added_bias, outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_norm_bias, has_added_bias,
    added_scale, output_scale, epsilon,
    GROUPS: tl.constexpr, LAYER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add and store the norm, a LayerNorm where LAYER says so; see ``norm_row``."""
    norm_row(residual, added, row_index, norm, norm_bias, added_bias, outputs, scales, sums, hidden,
             added_rows, splits, gathers, has_norm_bias, has_added_bias, added_scale, output_scale,
             epsilon, GROUPS, LAYER, True, PDL)  # fmt: skip
