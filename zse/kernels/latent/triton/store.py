"""What is kept of a token, and the norm of its queries' own latent."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.rope_store.triton.heads import (
    BLOCK_TOKENS,
    Stored,
    line_of,
    load_halves,
    rotate,
    write_columns,
)
from zse.kernels.triton.parts import (
    GROUP,
    load_bias,
    store_activations,
    sum_partials,
    wait_for_inputs,
)


@triton.jit
def latent_store(
    joined, bias, norm, cosines_sines, positions, table_rows, tables, keys, key_scales,
    rows, splits, has_bias, has_table_rows, table_stride, own_columns, epsilon,
    RANK: tl.constexpr, TURNING: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Write the normed latent of a row, and behind it the key, turned. Program: (row).

    Both lie behind ``own_columns`` in a row of the joined product.
    """
    wait_for_inputs(PDL)
    kept: tl.constexpr = RANK + TURNING
    half: tl.constexpr = TURNING // 2
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, RANK)[None, :]
    first_pair = RANK + tl.arange(0, half)[None, :]
    second_pair = first_pair + half
    line = joined + row * (own_columns + kept) + own_columns
    own_bias = bias + own_columns
    stride = rows.to(tl.int64) * (own_columns + kept)
    latent = sum_partials(line, column, column >= 0, splits, stride)
    first = sum_partials(line, first_pair, first_pair >= 0, splits, stride)
    second = sum_partials(line, second_pair, second_pair >= 0, splits, stride)
    latent += load_bias(own_bias, column, column >= 0, has_bias)
    first += load_bias(own_bias, first_pair, first_pair >= 0, has_bias)
    second += load_bias(own_bias, second_pair, second_pair >= 0, has_bias)
    mean = tl.sum(latent * latent, axis=1)[:, None] / RANK
    latent = latent * tl.rsqrt(mean + epsilon) * tl.load(norm + column)

    position = tl.load(positions + row)
    cosines, sines = load_halves(cosines_sines + position.to(tl.int64) * TURNING, half, half)
    first, second = rotate(first, second, cosines, sines)

    table_row = row
    if has_table_rows != 0:
        table_row = tl.load(table_rows + row).to(tl.int64)
    block = tl.load(tables + table_row * table_stride + position // BLOCK_TOKENS).to(tl.int64)
    lines = line_of(block, position, 0, 1) + tl.zeros((1,), tl.int64)
    cache = Stored(keys, key_scales)
    write_columns(cache, latent, lines, column >= 0, 0, kept, PLAIN)
    write_columns(cache, first, lines, first_pair >= 0, RANK, kept, PLAIN)
    write_columns(cache, second, lines, first_pair >= 0, RANK + half, kept, PLAIN)


@triton.jit
def query_norm(
    joined, bias, norm, outputs, scales, sums,
    rows, splits, has_bias, columns, joined_columns, epsilon,
    GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store the RMSNorm of the first ``columns`` of a row of the joined product. Program: (row)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS)
    column = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < columns
    stride = rows.to(tl.int64) * joined_columns
    values = sum_partials(joined + row * joined_columns, column, inside, splits, stride)
    values += load_bias(bias, column, inside, has_bias)
    mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / columns
    values = values * tl.rsqrt(mean + epsilon) * tl.load(norm + column, mask=inside, other=0.0)
    row_groups = tl.cdiv(columns, GROUP)
    store_activations(
        values,
        outputs + row * columns,
        scales + row * row_groups,
        sums + row * row_groups,
        column,
        groups,
        inside,
        groups < row_groups,
    )
