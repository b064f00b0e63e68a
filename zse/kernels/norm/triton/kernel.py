"""RMSNorm and LayerNorm of the residual stream, and the norm of all heads together."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import (
    GROUP,
    load_bias,
    store_activations,
    sum_partials,
    wait_for_inputs,
)


@triton.jit
def norm_row(
    residual, added, row_index, norm, norm_bias, added_bias, post_norm, stream_scale,
    outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_norm_bias, has_added_bias, has_post_norm,
    has_stream_scale, added_scale, output_scale, epsilon, post_epsilon,
    GROUPS: tl.constexpr, NORM: tl.constexpr, FAMILY: tl.constexpr, POST: tl.constexpr,
    STREAM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add pending sums to one row of the residual stream, normalize it, store activations.

    Program: (row). The norm's weight is fetched before the previous kernel has ended. What only
    some families have is looked at where FAMILY says so: a bias and a factor on what is added, a
    bias of the norm, a factor on the result. POST: what is added may have an RMSNorm of its own,
    and the stream a factor after it. NORM is ``rms``, ``layer`` or ``none``.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    if NORM != "none":
        weight = tl.load(norm + columns, mask=inside, other=0.0)
    if POST:
        post_weight = load_bias(post_norm, columns, inside, has_post_norm)
    if PDL:
        tl.extra.cuda.gdc_wait()
    source = row
    if gathers != 0:
        source = tl.load(row_index + row).to(tl.int64)
    stream = residual + source * hidden
    values = tl.load(stream + columns, mask=inside, other=0.0)
    if POST or splits > 0:  # the stream may have a factor though nothing is added
        stride = added_rows.to(tl.int64) * hidden
        total = sum_partials(added + source * hidden, columns, inside, splits, stride)
        if FAMILY:
            total += load_bias(added_bias, columns, inside, has_added_bias)
        if POST:
            mean = tl.sum(tl.sum(total * total, axis=1), axis=0) / hidden
            normalized = total * tl.rsqrt(mean + post_epsilon) * post_weight
            total = tl.where(has_post_norm != 0, normalized, total)
        if FAMILY:
            total *= added_scale
        values += total
        if POST:  # noqa: SIM102 - a constant of the form, then a number of the launch
            if has_stream_scale != 0:
                values *= tl.load(stream_scale)
        if not STREAM:  # noqa: SIM102 - likewise
            if gathers == 0:
                tl.store(stream + columns, values, mask=inside)
    if NORM == "layer":
        values -= tl.sum(tl.sum(values, axis=1), axis=0) / hidden
        values = tl.where(inside, values, 0.0)
    if NORM != "none":
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
        values = values * tl.rsqrt(mean + epsilon) * weight
    if FAMILY:
        values += load_bias(norm_bias, columns, inside, has_norm_bias)
        values *= output_scale
    if STREAM:
        tl.store(stream + columns, values, mask=inside)
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
    norm_row(residual, added, row_index, norm, norm, norm, norm, norm, outputs, scales, sums,
             hidden, added_rows, splits, GATHER, 0, 0, 0, 0, 1.0, 1.0, epsilon, 0.0,
             GROUPS, "rms", False, False, False, PDL)  # fmt: skip


@triton.jit
def family_norm(
    residual, added, row_index, norm, norm_bias, added_bias, outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_norm_bias, has_added_bias,
    added_scale, output_scale, epsilon,
    GROUPS: tl.constexpr, LAYER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add and store the norm, a LayerNorm where LAYER says so; see ``norm_row``."""
    norm_row(residual, added, row_index, norm, norm_bias, added_bias, norm, norm,
             outputs, scales, sums, hidden, added_rows, splits, gathers, has_norm_bias,
             has_added_bias, 0, 0, added_scale, output_scale, epsilon, 0.0,
             GROUPS, "layer" if LAYER else "rms", True, False, False, PDL)  # fmt: skip


@triton.jit
def post_norm(
    residual, added, row_index, norm, added_bias, post_norm, stream_scale, outputs, scales, sums,
    hidden, added_rows, splits, gathers, has_added_bias, has_post_norm, has_stream_scale,
    added_scale, output_scale, epsilon, post_epsilon,
    GROUPS: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add the RMSNorm of what is pending; store the stream's norm, or itself; see ``norm_row``."""
    norm_row(residual, added, row_index, norm, norm, added_bias, post_norm, stream_scale,
             outputs, scales, sums, hidden, added_rows, splits, gathers, 0,
             has_added_bias, has_post_norm, has_stream_scale, added_scale, output_scale,
             epsilon, post_epsilon,
             GROUPS, NORM, True, True, False, PDL)  # fmt: skip


@triton.jit
def stream_norm(
    residual, added, norm, norm_bias, added_bias, outputs,
    hidden, added_rows, splits, has_norm_bias, has_added_bias, added_scale, epsilon,
    GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add what is pending; the LayerNorm of all is the stream, and is stored; see ``norm_row``."""
    norm_row(residual, added, norm, norm, norm_bias, added_bias, norm, norm, outputs, norm, norm,
             hidden, added_rows, splits, 0, has_norm_bias, has_added_bias, 0, 0,
             added_scale, 1.0, epsilon, 0.0,
             GROUPS, "layer", True, False, True, PDL)  # fmt: skip


@triton.jit
def heads_norm(
    sums, bias, q_norm, k_norm, sum_rows, splits, has_bias, q_columns, k_columns, all_columns,
    epsilon, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Leave whole rows in the first summand, all queries with one RMSNorm, all keys with another.

    Program: (row, part): queries, keys, values.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    groups = tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    first = tl.where(part == 0, 0, tl.where(part == 1, q_columns, q_columns + k_columns))
    end = tl.where(part == 0, q_columns, tl.where(part == 1, q_columns + k_columns, all_columns))
    inside = columns < end - first
    line = sums + row * all_columns + first
    stride = sum_rows.to(tl.int64) * all_columns
    values = sum_partials(line, columns, inside, splits, stride)
    values += load_bias(bias + first, columns, inside, has_bias)
    if part < 2:
        weight = load_bias(q_norm, columns, inside, 1 - part)
        weight += load_bias(k_norm, columns, inside, part)
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / (end - first)
        values = values * tl.rsqrt(mean + epsilon) * weight
    tl.store(line + columns, values, mask=inside)
