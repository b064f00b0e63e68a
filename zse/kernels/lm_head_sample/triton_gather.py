"""Truncation, second half: the bracket is narrowed where it must be, and its tokens are listed."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton_common import (
    GREEDY,
    load_logits,
    row_maximum,
    scaled_masses,
)
from zse.kernels.lm_head_sample.triton_truncate import (
    BINS,
    SLACK,
    STATE,
    choose_bin,
    column,
    count_bins,
    truncation_of,
)


@triton.jit
def first_bracket(
    row,
    most,
    part,
    floor,
    largest,
    inverse,
    block_max,
    block_mass,
    block_min,
    block_count,
    bin_count,
    bin_mass,
    edges,
    num_blocks,
    MAX_BLOCKS: tl.constexpr,
):
    """Return (low, high, total mass, list length, top_k, bin, number above) from the first bins.

    A threshold below the first bins has bin -1; its bracket starts at the smallest logit.
    """
    place = row * num_blocks
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = blocks < num_blocks
    counts = tl.load(block_count + place + blocks, mask=inside, other=0)
    total_mass = tl.sum(
        scaled_masses(block_max, block_mass, row, num_blocks, largest, inverse, MAX_BLOCKS), axis=0
    )
    if floor > 0.0:
        counts = column(bin_count, place, num_blocks, 0, MAX_BLOCKS)
        total_mass = tl.sum(column(bin_mass, place, num_blocks, 0, MAX_BLOCKS), axis=0)
    most = tl.minimum(most, tl.sum(counts, axis=0))
    wanted_mass = part * total_mass * (1.0 - SLACK)
    index = choose_bin(bin_count, bin_mass, place, num_blocks, most, wanted_mass, most, MAX_BLOCKS)
    if floor > 0.0:
        index = tl.maximum(index, 0)
    minima = tl.load(block_min + place + blocks, mask=inside, other=float("inf"))
    low = tl.min(minima, axis=0)
    if index >= 0:
        low = tl.load(edges + row * BINS + index)
        counts = column(bin_count, place, num_blocks, index, MAX_BLOCKS)
    high = tl.load(edges + row * BINS + index + 1, mask=index + 1 < BINS, other=float("inf"))
    above = tl.sum(column(bin_count, place, num_blocks, index + 1, MAX_BLOCKS), axis=0)
    length = tl.sum(counts, axis=0)
    if (most <= 0) | (part >= 1.0):
        length -= above
    return low, high, total_mass, length, most, index, above


@triton.jit
def second_bins(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    block_max,
    block_arg,
    block_mass,
    block_min,
    block_count,
    bin_count,
    bin_mass,
    edges,
    second_count,
    second_mass,
    second_edges,
    state_values,
    state_counts,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
    PDL: tl.constexpr,
):
    """Find the row's bracket; if its list is too long, divide it again. Program: (row, block).

    The list is the bracket's tokens; with top_k and top_p together it is all from its lower edge
    up, because top_p's threshold depends on what top_k keeps.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    most, part, floor = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    searched = (most > 0) | (part < 1.0)
    if (degrees >= GREEDY) & (largest > float("-inf")) & searched:
        inverse = 1.0 / degrees
        low, high, total_mass, length, most, index, above = first_bracket(
            row,
            most,
            part,
            floor,
            largest,
            inverse,
            block_max,
            block_mass,
            block_min,
            block_count,
            bin_count,
            bin_mass,
            edges,
            num_blocks,
            MAX_BLOCKS,
        )
        if block == 0:
            tl.store(state_values + row * STATE, low)
            tl.store(state_values + row * STATE + 1, high)
            tl.store(state_values + row * STATE + 2, total_mass)
            tl.store(state_counts + row * STATE, length)
            tl.store(state_counts + row * STATE + 1, most)
            tl.store(state_counts + row * STATE + 2, index)
            tl.store(state_counts + row * STATE + 3, above)
        if length > CAPACITY:
            count_bins(
                logits,
                row,
                block,
                vocab,
                low,
                high,
                tl.minimum(high, largest),
                largest,
                inverse,
                row * num_blocks + block,
                second_count,
                second_mass,
                second_edges,
                BLOCK,
                SLICE,
            )


@triton.jit
def final_bracket(
    row,
    part,
    state_values,
    state_counts,
    block_count,
    bin_count,
    bin_mass,
    second_count,
    second_mass,
    second_edges,
    num_blocks,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Return (low, high, top_k, numbers inside by block, above by block, masses above by block)."""
    place = row * num_blocks
    blocks = tl.arange(0, MAX_BLOCKS)
    low = tl.load(state_values + row * STATE)
    high = tl.load(state_values + row * STATE + 1)
    total_mass = tl.load(state_values + row * STATE + 2)
    length = tl.load(state_counts + row * STATE)
    most = tl.load(state_counts + row * STATE + 1)
    index = tl.load(state_counts + row * STATE + 2)
    reached = tl.load(block_count + place + blocks, mask=blocks < num_blocks, other=0)
    if index >= 0:
        reached = column(bin_count, place, num_blocks, index, MAX_BLOCKS)
    above = column(bin_count, place, num_blocks, index + 1, MAX_BLOCKS)
    masses = column(bin_mass, place, num_blocks, index + 1, MAX_BLOCKS)
    if length > CAPACITY:
        wanted_count = most - tl.sum(above, axis=0)
        wanted_mass = part * total_mass * (1.0 - SLACK) - tl.sum(masses, axis=0)
        second = choose_bin(
            second_count,
            second_mass,
            place,
            num_blocks,
            wanted_count,
            wanted_mass,
            most,
            MAX_BLOCKS,
        )
        second = tl.maximum(second, 0)  # sums in another order may miss by the last bit
        reached = above + column(second_count, place, num_blocks, second, MAX_BLOCKS)
        above += column(second_count, place, num_blocks, second + 1, MAX_BLOCKS)
        masses += column(second_mass, place, num_blocks, second + 1, MAX_BLOCKS)
        low = tl.load(second_edges + row * BINS + second)
        if second + 1 < BINS:
            high = tl.load(second_edges + row * BINS + second + 1)
    if (most > 0) & (part < 1.0):
        high = float("inf")
        above = tl.zeros_like(above)
        masses = tl.zeros_like(masses)
    return low, high, most, reached - above, above, masses


@triton.jit
def list_block(
    logits,
    row,
    block,
    vocab,
    low,
    high,
    first,
    list_values,
    list_tokens,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Copy one block's tokens inside the bracket to the row's list, in order of identity."""
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, row, offsets, vocab)
    inside = (values >= low) & (values < high) & (values > float("-inf"))
    number = inside.to(tl.int32)
    places = first + tl.cumsum(number, 0) - number
    inside = inside & (places < CAPACITY)
    tl.store(list_values + row * CAPACITY + places, values, mask=inside)
    tl.store(list_tokens + row * CAPACITY + places, offsets, mask=inside)


@triton.jit
def gather_candidates(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    block_max,
    block_arg,
    block_mass,
    block_count,
    bin_count,
    bin_mass,
    edges,
    second_count,
    second_mass,
    second_edges,
    state_values,
    state_counts,
    kept_mass,
    list_values,
    list_tokens,
    cut_values,
    cut_counts,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
    PDL: tl.constexpr,
):
    """List what lies in the bracket; store each block's mass above it. Program: (row, block).

    A row without a threshold has an empty bracket at its floor, everything else above it.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    most, part, floor = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    if (degrees >= GREEDY) & (largest > float("-inf")):
        blocks = tl.arange(0, MAX_BLOCKS)
        low = float("-inf")
        high = float("-inf")
        length = 0
        rest = 0
        if (most > 0) | (part < 1.0):
            low, high, most, inside, above, masses = final_bracket(
                row,
                part,
                state_values,
                state_counts,
                block_count,
                bin_count,
                bin_mass,
                second_count,
                second_mass,
                second_edges,
                num_blocks,
                MAX_BLOCKS,
                CAPACITY,
            )
            length = tl.sum(inside, axis=0)
            rest = most - tl.sum(above, axis=0)
            own = tl.sum(tl.where(blocks == block, inside, 0), axis=0)
            if (length <= CAPACITY) & (own > 0):
                first = tl.sum(tl.where(blocks < block, inside, 0), axis=0)
                list_block(
                    logits,
                    row,
                    block,
                    vocab,
                    low,
                    high,
                    first,
                    list_values,
                    list_tokens,
                    BLOCK,
                    CAPACITY,
                )
        elif floor > 0.0:
            low = tl.load(edges + row * BINS)
            high = low
            masses = column(bin_mass, row * num_blocks, num_blocks, 0, MAX_BLOCKS)
        else:
            masses = scaled_masses(
                block_max, block_mass, row, num_blocks, largest, 1.0 / degrees, MAX_BLOCKS
            )
        own_mass = tl.sum(tl.where(blocks == block, masses, 0.0), axis=0)
        tl.store(kept_mass + row * num_blocks + block, own_mass)
        if block == 0:
            tl.store(cut_values + row * STATE, low)
            tl.store(cut_values + row * STATE + 1, high)
            total_mass = tl.load(state_values + row * STATE + 2)
            tl.store(cut_values + row * STATE + 2, total_mass)
            tl.store(cut_counts + row * STATE, length)
            tl.store(cut_counts + row * STATE + 1, rest)
