"""Which tokens may come: logits of all others become -inf."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.layout import MASK_BITS
from zse.kernels.triton.parts import wait_for_inputs

BITS = tl.constexpr(MASK_BITS)
"""Tokens of a word."""


@triton.jit
def mask_logits(
    logits,
    masks,
    mask_row,
    vocab,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write -inf over one block of one row, where its mask has no bit. Program: (row, block).

    ``masks`` is int32 [masks, ceil(vocab / 32)]; a row whose ``mask_row`` is negative has none.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    mask = tl.load(mask_row + row)
    if mask >= 0:
        num_words = (vocab + BITS - 1) // BITS
        words = tl.program_id(1) * (BLOCK // BITS) + tl.arange(0, BLOCK // BITS)
        found = tl.load(masks + mask * num_words + words, mask=words < num_words, other=0)
        bits = tl.arange(0, BITS)
        tokens = words[:, None] * BITS + bits[None, :]
        forbidden = ((found[:, None] >> bits[None, :]) & 1) == 0
        places = logits + row.to(tl.int64) * vocab + tokens
        tl.store(places, float("-inf"), mask=forbidden & (tokens < vocab))
