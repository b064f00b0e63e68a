"""Two norms side by side: what a head that guesses reads of a token."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import to_bf16, wait_for_inputs


@triton.jit
def store_normed(source, norm, outputs, hidden, epsilon, BLOCK: tl.constexpr, PLAIN: tl.constexpr):
    """Store RMSNorm of one row in 16 bits."""
    column = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, hidden, BLOCK):
        inside = first + column < hidden
        value = tl.load(source + first + column, mask=inside, other=0.0)
        squares += value * value
    factor = tl.rsqrt(tl.sum(squares, axis=0) / hidden + epsilon)
    for first in range(0, hidden, BLOCK):
        inside = first + column < hidden
        value = tl.load(source + first + column, mask=inside, other=0.0)
        weight = tl.load(norm + first + column, mask=inside, other=0.0)
        tl.store(outputs + first + column, to_bf16(value * factor * weight, PLAIN), mask=inside)


@triton.jit
def join_rows(
    stream, states, embedding_norm, state_norm, outputs, hidden, embedding_epsilon, state_epsilon,
    BLOCK: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Store a row's normed embedding, or its normed state behind it. Program: (row, which).

    The embedding is the stream, which is empty afterwards: what the join makes is added to it.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        own = stream + row * hidden
        store_normed(
            own, embedding_norm, outputs + 2 * row * hidden, hidden, embedding_epsilon, BLOCK, PLAIN
        )
        tl.debug_barrier()  # every thread has read the row
        column = tl.arange(0, BLOCK)
        for first in range(0, hidden, BLOCK):
            empty = tl.zeros((BLOCK,), tl.float32)
            tl.store(own + first + column, empty, mask=first + column < hidden)
    else:
        store_normed(
            states + row * hidden, state_norm, outputs + (2 * row + 1) * hidden, hidden,
            state_epsilon, BLOCK, PLAIN,
        )  # fmt: skip
