"""Truncation, second half: the bracket is narrowed where it must be, and its tokens are listed."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton.common import (
    GREEDY,
    Scale,
    load_logits,
    row_maximum,
    scaled_masses,
)
from zse.kernels.lm_head_sample.triton.truncate import (
    BINS,
    SLACK,
    Bins,
    Bracket,
    choose_bin,
    column,
    count_bins,
    load_bracket,
    row_minimum,
    store_bracket,
    store_cut,
    truncation_of,
)
from zse.kernels.triton.parts import wait_for_inputs


class Statistics(NamedTuple):
    """Addresses [rows, num_blocks] of what ``block_statistics`` stores."""

    largest: tl.tensor
    masses: tl.tensor
    smallest: tl.tensor
    counts: tl.tensor


class FinalBracket(NamedTuple):
    """A row's bracket in the end, and what each of its blocks [MAX_BLOCKS] has of it."""

    low: tl.tensor
    high: tl.tensor
    most: tl.tensor
    inside: tl.tensor
    """Tokens in the bracket."""
    above: tl.tensor
    """Tokens above it, all of which are kept."""
    masses: tl.tensor
    """Their masses."""


@triton.jit
def first_bracket(row, cuts, scale, statistics, bins, num_blocks, MAX_BLOCKS: tl.constexpr):
    """Return the ``Bracket`` that the first bins leave.

    Args:
        row: Which row.
        cuts: Its ``Cuts``.
        scale: Its ``Scale``.
        statistics: ``Statistics`` of all rows.
        bins: First ``Bins`` of all rows.
        num_blocks: Blocks of a row.
        MAX_BLOCKS: Most blocks of a row.
    """
    place = row * num_blocks
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = blocks < num_blocks
    counts = tl.load(statistics.counts + place + blocks, mask=inside, other=0)
    masses = scaled_masses(
        statistics.largest, statistics.masses, row, num_blocks, scale, MAX_BLOCKS
    )
    total_mass = tl.sum(masses, axis=0)
    if cuts.floor > 0.0:
        counts = column(bins.counts, place, num_blocks, 0, MAX_BLOCKS)
        total_mass = tl.sum(column(bins.masses, place, num_blocks, 0, MAX_BLOCKS), axis=0)
    most = tl.minimum(cuts.most, tl.sum(counts, axis=0))
    wanted_mass = cuts.part * total_mass * (1.0 - SLACK)
    chosen = choose_bin(bins, place, num_blocks, most, wanted_mass, most, MAX_BLOCKS)
    if cuts.floor > 0.0:
        chosen = tl.maximum(chosen, 0)
    low = row_minimum(statistics.smallest, row, num_blocks, MAX_BLOCKS)
    if chosen >= 0:
        low = tl.load(bins.edges + row * BINS + chosen)
        counts = column(bins.counts, place, num_blocks, chosen, MAX_BLOCKS)
    high = tl.load(bins.edges + row * BINS + chosen + 1, mask=chosen + 1 < BINS, other=float("inf"))
    above = tl.sum(column(bins.counts, place, num_blocks, chosen + 1, MAX_BLOCKS), axis=0)
    length = tl.sum(counts, axis=0)
    if (most <= 0) | (cuts.part >= 1.0):
        length -= above
    return Bracket(low, high, total_mass, length, most, chosen, above)


@triton.jit
def final_bracket(
    row,
    part,
    bracket,
    block_count,
    first,
    second,
    num_blocks,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Return the ``FinalBracket``: that of the second bins where the first's list is too long.

    Args:
        row: Which row.
        part: Its top_p.
        bracket: Its ``Bracket`` of the first bins.
        block_count: Address of int32 [rows, num_blocks], logits above -inf.
        first: First ``Bins`` of all rows.
        second: Second ones.
        num_blocks: Blocks of a row.
        MAX_BLOCKS: Most blocks of a row.
        CAPACITY: Tokens that a list has room for.
    """
    place = row * num_blocks
    blocks = tl.arange(0, MAX_BLOCKS)
    low = bracket.low
    high = bracket.high
    most = bracket.most
    reached = tl.load(block_count + place + blocks, mask=blocks < num_blocks, other=0)
    if bracket.bin >= 0:
        reached = column(first.counts, place, num_blocks, bracket.bin, MAX_BLOCKS)
    above = column(first.counts, place, num_blocks, bracket.bin + 1, MAX_BLOCKS)
    masses = column(first.masses, place, num_blocks, bracket.bin + 1, MAX_BLOCKS)
    if bracket.length > CAPACITY:
        wanted_count = most - tl.sum(above, axis=0)
        wanted_mass = part * bracket.total_mass * (1.0 - SLACK) - tl.sum(masses, axis=0)
        chosen = choose_bin(second, place, num_blocks, wanted_count, wanted_mass, most, MAX_BLOCKS)
        chosen = tl.maximum(chosen, 0)  # sums in another order may miss by the last bit
        reached = above + column(second.counts, place, num_blocks, chosen, MAX_BLOCKS)
        above += column(second.counts, place, num_blocks, chosen + 1, MAX_BLOCKS)
        masses += column(second.masses, place, num_blocks, chosen + 1, MAX_BLOCKS)
        low = tl.load(second.edges + row * BINS + chosen)
        if chosen + 1 < BINS:
            high = tl.load(second.edges + row * BINS + chosen + 1)
    if (most > 0) & (part < 1.0):
        high = float("inf")
        above = tl.zeros_like(above)
        masses = tl.zeros_like(masses)
    return FinalBracket(low, high, most, reached - above, above, masses)


@triton.jit
def second_bins(
    logits, temperature, top_k, top_p, min_p,
    block_max, block_arg, block_mass, block_min, block_count,
    bin_count, bin_mass, edges, second_count, second_mass, second_edges,
    state_values, state_counts, vocab, num_blocks,
    BLOCK: tl.constexpr, SLICE: tl.constexpr, MAX_BLOCKS: tl.constexpr, CAPACITY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Find the row's bracket; if its list is too long, divide it again. Program: (row, block).

    The list is the bracket's tokens; with top_k and top_p together it is all from its lower edge
    up, because top_p's threshold depends on what top_k keeps.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    cuts = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    searched = (cuts.most > 0) | (cuts.part < 1.0)
    if (degrees >= GREEDY) & (largest > float("-inf")) & searched:
        scale = Scale(largest, 1.0 / degrees)
        statistics = Statistics(block_max, block_mass, block_min, block_count)
        bins = Bins(bin_count, bin_mass, edges)
        bracket = first_bracket(row, cuts, scale, statistics, bins, num_blocks, MAX_BLOCKS)
        if block == 0:
            store_bracket(state_values, state_counts, row, bracket)
        if bracket.length > CAPACITY:
            top = tl.minimum(bracket.high, largest)
            count_bins(
                logits, row, block, vocab, num_blocks, bracket.low, bracket.high, top, scale,
                Bins(second_count, second_mass, second_edges), BLOCK, SLICE,
            )  # fmt: skip


@triton.jit
def list_candidates(
    logits,
    row,
    block,
    vocab,
    bracket,
    length,
    list_values,
    list_tokens,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Copy one block's tokens in the bracket to the row's list, in order of identity.

    Args:
        logits: float32 [rows, vocab].
        row: Which row.
        block: Which of its blocks.
        vocab: Logits of a row.
        bracket: The row's ``FinalBracket``.
        length: Tokens inside it.
        list_values: Address of float32 [rows, CAPACITY].
        list_tokens: Address of int32 [rows, CAPACITY].
        BLOCK: Logits of a block.
        MAX_BLOCKS: Most blocks of a row.
        CAPACITY: Tokens that a list has room for; none is made of more.
    """
    blocks = tl.arange(0, MAX_BLOCKS)
    own = tl.sum(tl.where(blocks == block, bracket.inside, 0), axis=0)
    if (length <= CAPACITY) & (own > 0):
        first = tl.sum(tl.where(blocks < block, bracket.inside, 0), axis=0)
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        values = load_logits(logits, row, offsets, vocab)
        inside = (values >= bracket.low) & (values < bracket.high) & (values > float("-inf"))
        number = inside.to(tl.int32)
        places = first + tl.cumsum(number, 0) - number
        inside = inside & (places < CAPACITY)
        tl.store(list_values + row * CAPACITY + places, values, mask=inside)
        tl.store(list_tokens + row * CAPACITY + places, offsets, mask=inside)


@triton.jit
def gather_candidates(
    logits, temperature, top_k, top_p, min_p, block_max, block_arg, block_mass, block_count,
    bin_count, bin_mass, edges, second_count, second_mass, second_edges,
    state_values, state_counts, kept_mass, list_values, list_tokens, cut_values, cut_counts,
    vocab, num_blocks,
    BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr, CAPACITY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """List what lies in the bracket; store each block's mass above it. Program: (row, block).

    A row without a threshold has an empty bracket at its floor, everything else above it.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    cuts = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    if (degrees >= GREEDY) & (largest > float("-inf")):
        blocks = tl.arange(0, MAX_BLOCKS)
        low = float("-inf")
        high = float("-inf")
        length = 0
        rest = 0
        if (cuts.most > 0) | (cuts.part < 1.0):
            bracket = final_bracket(
                row, cuts.part, load_bracket(state_values, state_counts, row), block_count,
                Bins(bin_count, bin_mass, edges), Bins(second_count, second_mass, second_edges),
                num_blocks, MAX_BLOCKS, CAPACITY,
            )  # fmt: skip
            low, high, masses = bracket.low, bracket.high, bracket.masses
            length = tl.sum(bracket.inside, axis=0)
            rest = bracket.most - tl.sum(bracket.above, axis=0)
            list_candidates(
                logits, row, block, vocab, bracket, length, list_values, list_tokens,
                BLOCK, MAX_BLOCKS, CAPACITY,
            )  # fmt: skip
        elif cuts.floor > 0.0:
            low = tl.load(edges + row * BINS)
            high = low
            masses = column(bin_mass, row * num_blocks, num_blocks, 0, MAX_BLOCKS)
        else:
            scale = Scale(largest, 1.0 / degrees)
            masses = scaled_masses(block_max, block_mass, row, num_blocks, scale, MAX_BLOCKS)
        own_mass = tl.sum(tl.where(blocks == block, masses, 0.0), axis=0)
        tl.store(kept_mass + row * num_blocks + block, own_mass)
        if block == 0:
            store_cut(cut_values, cut_counts, state_values, row, low, high, length, rest)
