"""Sampling without truncation: adjustments, statistics of blocks, greedy choice, inverse CDF."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton.common import (
    GREEDY,
    Scale,
    draw_from_blocks,
    load_logits,
    row_maximum,
    scaled_masses,
    store_token,
)
from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def adjust_logits(
    logits,
    entry_row,
    entry_token,
    entry_penalty,
    entry_add,
    vocab,
    num_entries,
    ENTRIES: tl.constexpr,
    RESTORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Apply penalties, biases and bans in place, or take them back. Program: (ENTRIES entries).

    Applying leaves the original logit in ``entry_add``; RESTORE writes it back.
    """
    wait_for_inputs(PDL)
    entries = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = entries < num_entries
    tokens = tl.load(entry_token + entries, mask=inside, other=-1)
    inside = inside & (tokens >= 0) & (tokens < vocab)
    rows = tl.load(entry_row + entries, mask=inside, other=0).to(tl.int64)
    places = logits + rows * vocab + tokens
    additions = tl.load(entry_add + entries, mask=inside, other=0.0)
    if RESTORE:
        tl.store(places, additions, mask=inside)
    else:
        values = tl.load(places, mask=inside, other=0.0)
        penalties = tl.load(entry_penalty + entries, mask=inside, other=1.0)
        penalized = tl.where(values > 0.0, values / penalties, values * penalties)
        tl.store(places, penalized + additions, mask=inside)
        tl.store(entry_add + entries, values, mask=inside)


@triton.jit
def block_statistics(
    logits,
    temperature,
    block_max,
    block_arg,
    block_mass,
    block_min,
    block_count,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    RANDOM: tl.constexpr,
    TRUNCATED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Reduce one block of one row. Program: (row, block).

    Maximum and the lowest token that has it; RANDOM: sum of exp((logit - maximum) / temperature);
    TRUNCATED: smallest logit above -inf, and how many are.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1)
    place = row * num_blocks + block
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, row, offsets, vocab)
    largest = tl.max(values, axis=0)
    last = tl.where(offsets < vocab, offsets, vocab - 1)
    tl.store(block_max + place, largest)
    tl.store(block_arg + place, tl.min(tl.where(values == largest, last, vocab - 1), axis=0))
    if RANDOM:
        degrees = tl.load(temperature + row)
        inverse = 1.0 / tl.where(degrees >= GREEDY, degrees, 1.0)
        origin = tl.where(largest > float("-inf"), largest, 0.0)
        tl.store(block_mass + place, tl.sum(tl.exp((values - origin) * inverse), axis=0))
    if TRUNCATED:
        usable = values > float("-inf")
        tl.store(block_min + place, tl.min(tl.where(usable, values, float("inf")), axis=0))
        tl.store(block_count + place, tl.sum(usable.to(tl.int32), axis=0))


@triton.jit
def pick_tokens(
    logits,
    temperature,
    uniform,
    slots,
    block_max,
    block_arg,
    block_mass,
    tokens,
    last_tokens,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    RANDOM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Choose a row's token: the likeliest, or a draw from the whole distribution. Program: (row).

    The draw walks the running mass in order of token identity, first over blocks, then inside one.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    largest, token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    if RANDOM:
        degrees = tl.load(temperature + row)
        if (degrees >= GREEDY) & (largest > float("-inf")):
            scale = Scale(largest, 1.0 / degrees)
            masses = scaled_masses(block_max, block_mass, row, num_blocks, scale, MAX_BLOCKS)
            target = tl.load(uniform + row) * tl.sum(masses, axis=0)
            token = draw_from_blocks(
                logits,
                row,
                vocab,
                masses,
                target,
                scale,
                float("-inf"),
                token,
                BLOCK,
                MAX_BLOCKS,
            )
    store_token(tokens, last_tokens, slots, row, token)
