"""Bounded logits: ``softcap * tanh(logit / softcap)``."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def cap_logits(logits, vocab, softcap, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Bound one block of one row, in place. Program: (row, block)."""
    wait_for_inputs(PDL)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + tl.program_id(0).to(tl.int64) * vocab + column
    inside = column < vocab
    ratio = tl.load(at, mask=inside, other=0.0) / softcap
    # tanh of more than 20 is 1 in float32; the exponential of the double must not overflow.
    ratio = tl.maximum(tl.minimum(ratio, 20.0), -20.0)
    tl.store(at, softcap * (2.0 * tl.sigmoid(2.0 * ratio) - 1.0), mask=inside)
