"""A residual block of a head that guesses: what is bent is added to the stream."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import sum_partials, wait_for_inputs


@triton.jit
def add_bent(
    stream, sums, bias, rows, splits, hidden, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Add SiLU of a product and its bias to some columns of a row. Program: (row, columns)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    at = row * hidden + column
    total = sum_partials(sums, at, inside, splits, rows.to(tl.int64) * hidden)
    total += tl.load(bias + column, mask=inside, other=0.0)
    value = tl.load(stream + at, mask=inside, other=0.0)
    tl.store(stream + at, value + total / (1.0 + tl.exp(-total)), mask=inside)
