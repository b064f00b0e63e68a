"""The vector of each text."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def pool_rows(
    stream, first_rows, num_rows, outputs, hidden, takes_first, takes_last,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store one chunk of the mean of a text's rows, or of one of them. Program: (text, chunk)."""
    wait_for_inputs(PDL)
    text = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    start = tl.load(first_rows + text)
    end = start + tl.load(num_rows + text)
    start = tl.where(takes_last != 0, end - 1, start)
    end = tl.where(takes_first != 0, start + 1, end)
    total = tl.zeros((BLOCK,), tl.float32)
    line = stream + start.to(tl.int64) * hidden + columns
    for _ in range(start, end):
        total += tl.load(line, mask=mask, other=0.0)
        line += hidden
    tl.store(outputs + text * hidden + columns, total / (end - start), mask=mask)
