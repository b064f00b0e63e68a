"""Parts that the kernels of linear attention share."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.triton.parts import sum_partials

L2_EPSILON = tl.constexpr(1e-6)


class Summands(NamedTuple):
    """A product that was split, and where its rows begin."""

    sums: tl.tensor
    rows: tl.tensor
    """Rows of a summand."""
    splits: tl.tensor
    columns: tl.tensor


class Rates(NamedTuple):
    """Addresses of what makes decays, float32 [value_heads] each."""

    decay: tl.tensor
    step_bias: tl.tensor


@triton.jit
def read(summands, row, column, mask):
    """Return float32 sums at rows and columns that are broadcast together."""
    offsets = row * summands.columns + column
    stride = summands.rows.to(tl.int64) * summands.columns
    return sum_partials(summands.sums, offsets, mask, summands.splits, stride)


@triton.jit
def silu(values):
    return values / (1.0 + tl.exp(-values))


@triton.jit
def read_gates(gates, rates, row, mask, head, value_heads):
    """Return the logarithm of the decay, and the step, of rows for one value head."""
    step = read(gates, row, head, mask)
    shifted = read(gates, row, value_heads + head, mask) + tl.load(rates.step_bias + head)
    softplus = tl.maximum(shifted, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(shifted)))
    log_decay = -tl.exp(tl.load(rates.decay + head)) * softplus
    return tl.where(mask, log_decay, 0.0), tl.where(mask, 1.0 / (1.0 + tl.exp(-step)), 0.0)
