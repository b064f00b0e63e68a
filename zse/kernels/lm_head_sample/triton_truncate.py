"""Truncation, first half: where the threshold of top_k and top_p lies, and the tokens around it.

The threshold of a row is searched by value. Two passes over the row, each of 16 bins, narrow it to
a bracket; the tokens inside are copied to a list short enough for one program
(``triton_draw``). What lies above the bracket is kept for sure and stays where it is. A row that
has no threshold to search (greedy, or min_p alone) costs these kernels next to nothing.

Every decision is made once, by programs of one kernel that run the same instructions on the same
numbers, and handed on through memory: float sums of two kernels may differ in the last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton_common import (
    GREEDY,
    load_logits,
    row_maximum,
)

BINS = tl.constexpr(16)
REACH = tl.constexpr(32.0)
"""Logits below the largest that the first bins cover, if nothing says less."""
SLACK = tl.constexpr(1e-6)
"""Part of top_p by which a sum of float32 may miss it."""
STATE = tl.constexpr(4)
"""Numbers of a row's state. Floats: low and high of the bracket, total mass of what min_p leaves.
Integers: length of the list, top_k; then, of the first bins' bracket, the bin and the number above;
of the final one, the key and the ties that ``triton_draw`` finds."""


@triton.jit
def truncation_of(row, vocab, top_k, top_p, min_p):
    """Return a row's top_k, top_p and min_p, each neutral where it does not cut."""
    most = tl.load(top_k + row)
    most = tl.where((most > 0) & (most < vocab), most, 0)
    return most, tl.load(top_p + row), tl.load(min_p + row)


@triton.jit
def column(bins, place, num_blocks, index, MAX_BLOCKS: tl.constexpr):
    """Return one bin of a row's blocks [MAX_BLOCKS]; zeros for the bin after the last."""
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = (blocks < num_blocks) & (index + tl.zeros_like(blocks) < BINS)
    return tl.load(bins + (place + blocks) * BINS + index, mask=inside, other=0)


@triton.jit
def choose_bin(
    bin_count,
    bin_mass,
    place,
    num_blocks,
    wanted_count,
    wanted_mass,
    most,
    MAX_BLOCKS: tl.constexpr,
):
    """Return the highest bin at whose lower edge enough is kept; -1 if none is low enough."""
    blocks = tl.arange(0, MAX_BLOCKS)
    bins = tl.arange(0, BINS)
    offsets = (place + blocks)[:, None] * BINS + bins[None, :]
    inside = (blocks < num_blocks)[:, None] & (bins >= 0)[None, :]
    counts = tl.sum(tl.load(bin_count + offsets, mask=inside, other=0), axis=0)
    masses = tl.sum(tl.load(bin_mass + offsets, mask=inside, other=0.0), axis=0)
    enough = tl.where(most > 0, counts >= wanted_count, masses >= wanted_mass)
    return tl.max(tl.where(enough, bins, -1), axis=0)


@triton.jit
def count_bins(
    logits,
    row,
    block,
    vocab,
    low,
    high,
    top,
    largest,
    inverse,
    place,
    bin_count,
    bin_mass,
    edges,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Store number and mass of one block's tokens at or above each of 16 edges, below ``high``.

    The edges divide ``low`` to ``top`` evenly; the row's first block stores them.
    """
    bins = tl.arange(0, BINS)
    # Halves before the difference: the ends of float32 are further apart than float32 can say.
    width = top * (1.0 / BINS) - low * (1.0 / BINS)
    # One operation, so that what is stored is to the last bit what was compared with.
    edge = tl.where(bins == 0, low, tl.fma(bins.to(tl.float32), width, low))
    counts = tl.zeros((BINS, SLICE), tl.int32)
    masses = tl.zeros((BINS, SLICE), tl.float32)
    for start in range(0, BLOCK, SLICE):
        offsets = block * BLOCK + start + tl.arange(0, SLICE)
        values = load_logits(logits, row, offsets, vocab)
        weights = tl.exp((values - largest) * inverse)
        usable = (values < high) & (values > float("-inf"))
        reached = (values[None, :] >= edge[:, None]) & usable[None, :]
        counts += reached.to(tl.int32)
        masses += tl.where(reached, weights[None, :], 0.0)
    tl.store(bin_count + place * BINS + bins, tl.sum(counts, axis=1))
    tl.store(bin_mass + place * BINS + bins, tl.sum(masses, axis=1))
    if block == 0:
        tl.store(edges + row * BINS + bins, edge)


@triton.jit
def first_bins(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    block_max,
    block_arg,
    block_min,
    bin_count,
    bin_mass,
    edges,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Count one block into 16 bins below the row's largest logit. Program: (row, block).

    With min_p the lowest edge is its floor, so that bin 0 counts all that min_p leaves.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    most, part, floor = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    cuts = (most > 0) | (part < 1.0) | (floor > 0.0)
    if (degrees >= GREEDY) & (largest > float("-inf")) & cuts:
        blocks = tl.arange(0, MAX_BLOCKS)
        minima = tl.load(
            block_min + row * num_blocks + blocks, mask=blocks < num_blocks, other=float("inf")
        )
        low = tl.maximum(tl.min(minima, axis=0), largest - REACH)
        if floor > 0.0:
            low = largest + degrees * tl.log(floor)
        count_bins(
            logits,
            row,
            block,
            vocab,
            low,
            float("inf"),
            largest,
            largest,
            1.0 / degrees,
            row * num_blocks + block,
            bin_count,
            bin_mass,
            edges,
            BLOCK,
            SLICE,
        )
