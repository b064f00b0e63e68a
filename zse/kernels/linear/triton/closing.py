"""The RMSNorm behind a product of few tokens, begun by the programs of the product themselves.

A group of 128 columns of the next matrix's activations is made of as many rows of this one. Whoever
is the last to store sums of these rows adds them to the residual stream and rounds the group:
nothing waits for the whole product, and a launch with its wait falls away. The programs of a group
count themselves; the last one sets their counter back to zero.

The norm is a factor of its whole row. Codes do not change by it, and scales take it as well later:
so a group is stored without it, with the sum of its squares, and the product that reads it
multiplies its totals by the factor.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.linear.triton.decode import gemv_totals
from zse.kernels.linear.triton.parts import (
    split_of_pieces,
    store_totals,
    tile_rows,
    tile_tokens,
)
from zse.kernels.triton.parts import (
    GROUP,
    store_activations,
    sum_partials,
)

MOST_GROUPS = tl.constexpr(64)
"""Groups of the longest rows whose norm is begun."""


class Begun(NamedTuple):
    """Where a norm that is begun goes, and what it is made of beside sums."""

    codes: tl.tensor
    scales: tl.tensor
    sums: tl.tensor
    residual: tl.tensor
    """float32 [rows, N]."""
    norm: tl.tensor
    """float32 [N]."""
    squares: tl.tensor
    """float32 [rows, N / 128], sums of squares of the stream."""


@triton.jit
def norm_factors(squares, tokens, hidden, epsilon, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Return the factor of each token's RMSNorm, a tuple, of its groups' sums of squares."""
    groups = tl.arange(0, GROUPS)
    count = hidden // GROUP
    factors: tl.tuple = ()
    for index in tl.static_range(ROWS):
        part = tl.load(squares + tokens[index] * count + groups, mask=groups < count, other=0.0)
        factors += (tl.rsqrt(tl.sum(part, axis=0) / hidden + epsilon),)
    return factors


@triton.jit
def begin_norm(outputs, begun, m, rows, N, group, splits):
    """Add a group of token m's sums to the stream, all of which are there; store it rounded."""
    groups = tl.zeros((1,), tl.int32) + group
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    kept = m + tl.zeros_like(groups) < rows
    inside = m + tl.zeros_like(columns) < rows
    row = m.to(tl.int64)
    stream = begun.residual + row * N
    values = tl.load(stream + columns, mask=inside, other=0.0)
    weight = tl.load(begun.norm + columns)
    values += sum_partials(outputs + row * N, columns, inside, splits, rows.to(tl.int64) * N)
    tl.store(stream + columns, values, mask=inside)
    count = N // GROUP
    tl.store(begun.squares + row * count + groups, tl.sum(values * values, axis=1), mask=kept)
    store_activations(
        values * weight, begun.codes + row * N, begun.scales + row * count,
        begun.sums + row * count, columns, groups, inside, kept,
    )  # fmt: skip


@triton.jit
def gemv_closed(codes, scales, sums, weights, weight_scales, outputs, rows, N, blocks,
                squares, epsilon, next_codes, next_scales, next_sums, counters, residual, norm,
                next_squares,
                SCHEME: tl.constexpr, BEGUN: tl.constexpr, CLOSES: tl.constexpr,
                ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
                PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` in groups of 128 or ``gemv_int8``, of begun norms or with one behind.

    Operands:
        squares: float32 [rows, K / 128], if BEGUN: the activations are without the factor of their
            norm, whose ``epsilon`` follows.
        next_codes: Where the norm behind goes, with ``next_scales``, ``next_sums`` and
            ``next_squares``, if CLOSES.
        counters: int32 for each group and each tile of tokens, zero between launches.
        residual: float32 [rows, N], to which the product is added.
        norm: float32 [N], the norm's weight.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pieces: tl.constexpr = 8 if SCHEME == "int8" else 4
    begin, end = split_of_pieces(blocks * pieces, C)
    n, row = tile_rows(N, R, T)
    tokens = tile_tokens(rows, ROWS)
    inputs = (codes, scales) if SCHEME == "int8" else (codes, scales, sums)
    totals, factor = gemv_totals(inputs, tokens, weights, weight_scales, row, begin, end, blocks,
                                 SCHEME, 0 if SCHEME == "int8" else 128, pieces, ROWS, R, T, C,
                                 PDL, PLAIN)  # fmt: skip
    if BEGUN:
        factors = norm_factors(squares, tokens, blocks * GROUP, epsilon, ROWS, MOST_GROUPS)
        normed: tl.tuple = ()
        for index in tl.static_range(ROWS):
            normed += (totals[index] * factors[index],)
        totals = normed
    store_totals(outputs, totals, factor, n, rows, N, ROWS)
    if CLOSES:
        splits = tl.num_programs(1)
        group = tl.program_id(0) * (R * T) // GROUP
        counter = counters + tl.program_id(2) * (N // GROUP) + group
        tl.debug_barrier()  # every thread has stored before one of them says so
        arrived = tl.atomic_add(counter, 1, sem="acq_rel")
        if arrived == splits * (GROUP // (R * T)) - 1:
            begun = Begun(next_codes, next_scales, next_sums, residual, norm, next_squares)
            for token in range(ROWS):
                m = tl.program_id(2) * ROWS + token
                begin_norm(outputs, begun, m, rows, N, group, splits)
            tl.store(counter, 0)
