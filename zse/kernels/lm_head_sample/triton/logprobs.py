"""Log-probabilities of the model itself: the chosen token's, and the likeliest alternatives."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.layout import MAX_ALTERNATIVES
from zse.kernels.lm_head_sample.triton.common import NOTHING, load_logits
from zse.kernels.triton.parts import wait_for_inputs

ALTERNATIVES = tl.constexpr(MAX_ALTERNATIVES)


@triton.jit
def best_of(values, tokens):
    """Return the largest value and the lowest token that has it."""
    largest = tl.max(values, axis=0)
    return largest, tl.min(tl.where(values == largest, tokens, NOTHING), axis=0)


@triton.jit
def block_alternatives(
    logits,
    model_max,
    model_mass,
    best_values,
    best_tokens,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store a block's maximum, sum of exponentials and best tokens. Program: (row, block).

    A token that was taken is replaced by -inf with no identity; so is what lies past the end.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1)
    place = row * num_blocks + block
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, row, offsets, vocab)
    tokens = tl.where(offsets < vocab, offsets, NOTHING)
    largest = tl.max(values, axis=0)
    origin = tl.where(largest > float("-inf"), largest, 0.0)
    tl.store(model_max + place, largest)
    tl.store(model_mass + place, tl.sum(tl.exp(values - origin), axis=0))
    for rank in range(ALTERNATIVES):
        value, token = best_of(values, tokens)
        tl.store(best_values + place * ALTERNATIVES + rank, value)
        tl.store(best_tokens + place * ALTERNATIVES + rank, token)
        taken = tokens == token
        values = tl.where(taken, float("-inf"), values)
        tokens = tl.where(taken, NOTHING, tokens)


@triton.jit
def row_logprobs(
    logits,
    chosen,
    model_max,
    model_mass,
    best_values,
    best_tokens,
    logprobs,
    top_tokens,
    top_logprobs,
    vocab,
    num_blocks,
    MAX_BLOCKS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Store a row's log-probabilities. Program: (row)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = blocks < num_blocks
    place = row * num_blocks
    maxima = tl.load(model_max + place + blocks, mask=inside, other=float("-inf"))
    masses = tl.load(model_mass + place + blocks, mask=inside, other=0.0)
    largest = tl.max(maxima, axis=0)
    origin = tl.where(largest > float("-inf"), largest, 0.0)
    total = origin + tl.log(tl.sum(masses * tl.exp(maxima - origin), axis=0))
    chosen_logit = load_logits(logits, row, tl.load(chosen + row), vocab)
    tl.store(logprobs + row, chosen_logit - total)
    offsets = tl.arange(0, MAX_CANDIDATES)
    listed = offsets < num_blocks * ALTERNATIVES
    first = place * ALTERNATIVES
    values = tl.load(best_values + first + offsets, mask=listed, other=float("-inf"))
    tokens = tl.load(best_tokens + first + offsets, mask=listed, other=NOTHING)
    for rank in range(ALTERNATIVES):
        value, token = best_of(values, tokens)
        tl.store(top_logprobs + row * ALTERNATIVES + rank, value - total)
        tl.store(top_tokens + row * ALTERNATIVES + rank, tl.where(token < NOTHING, token, -1))
        taken = tokens == token
        values = tl.where(taken, float("-inf"), values)
        tokens = tl.where(taken, NOTHING, tokens)
