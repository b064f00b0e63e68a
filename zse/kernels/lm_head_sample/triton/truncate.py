"""Truncation, first half: where the threshold of top_k and top_p lies, and the tokens around it.

The threshold of a row is searched by value. Two passes over the row, each of 16 bins, narrow it to
a bracket; the tokens inside are copied to a list short enough for one program
(``draw``). What lies above the bracket is kept for sure and stays where it is. A row that
has no threshold to search (greedy, or min_p alone) costs these kernels next to nothing.

Every decision is made once, by programs of one kernel that run the same instructions on the same
numbers, and handed on through memory: float sums of two kernels may differ in the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.layout import (
    NUM_BINS,
    STATE_SIZE,
)
from zse.kernels.lm_head_sample.triton.common import (
    GREEDY,
    Scale,
    load_logits,
    mass_of,
    row_maximum,
)
from zse.kernels.triton.parts import wait_for_inputs

BINS = tl.constexpr(NUM_BINS)
REACH = tl.constexpr(32.0)
"""Logits below the largest that the first bins cover, if nothing says less."""
SLACK = tl.constexpr(1e-6)
"""Part of top_p by which a sum of float32 may miss it."""
STATE = tl.constexpr(STATE_SIZE)
"""Room for a row's ``Bracket``, or its ``Cut``."""


class Cuts(NamedTuple):
    """A row's parameters of truncation, each neutral where it does not cut."""

    most: tl.tensor
    """top_k, or 0."""
    part: tl.tensor
    """top_p, or 1."""
    floor: tl.tensor
    """min_p, or 0."""


class Bins(NamedTuple):
    """Addresses of what ``count_bins`` stores."""

    counts: tl.tensor
    """int32 [rows, num_blocks, 16]."""
    masses: tl.tensor
    """float32, likewise."""
    edges: tl.tensor
    """float32 [rows, 16]."""


class Bracket(NamedTuple):
    """A row's bracket among the first bins: scalars."""

    low: tl.tensor
    """Least logit inside."""
    high: tl.tensor
    """Least logit above."""
    total_mass: tl.tensor
    """Mass of what min_p leaves."""
    length: tl.tensor
    """Tokens of the list."""
    most: tl.tensor
    """top_k, of what min_p leaves; 0 for none."""
    bin: tl.tensor
    """-1 below the first bins; the bracket starts at the smallest logit then."""
    above: tl.tensor
    """Tokens above the bracket."""


class Cut(NamedTuple):
    """What the kernel that draws needs of a row's final bracket: scalars."""

    low: tl.tensor
    high: tl.tensor
    total_mass: tl.tensor
    """Mass of what min_p leaves."""
    length: tl.tensor
    """Tokens in the bracket; its list exists if they have room in it."""
    rest: tl.tensor
    """What is left of top_k for them."""


@triton.jit
def truncation_of(row, vocab, top_k, top_p, min_p):
    """Return the ``Cuts`` of a row."""
    most = tl.load(top_k + row)
    most = tl.where((most > 0) & (most < vocab), most, 0)
    return Cuts(most, tl.load(top_p + row), tl.load(min_p + row))


@triton.jit
def store_bracket(state_values, state_counts, row, bracket):
    """Store a ``Bracket`` as float32 [rows, STATE] and int32 [rows, STATE]."""
    tl.store(state_values + row * STATE, bracket.low)
    tl.store(state_values + row * STATE + 1, bracket.high)
    tl.store(state_values + row * STATE + 2, bracket.total_mass)
    tl.store(state_counts + row * STATE, bracket.length)
    tl.store(state_counts + row * STATE + 1, bracket.most)
    tl.store(state_counts + row * STATE + 2, bracket.bin)
    tl.store(state_counts + row * STATE + 3, bracket.above)


@triton.jit
def load_bracket(state_values, state_counts, row):
    """Return the ``Bracket`` that ``store_bracket`` stored."""
    low = tl.load(state_values + row * STATE)
    high = tl.load(state_values + row * STATE + 1)
    total_mass = tl.load(state_values + row * STATE + 2)
    length = tl.load(state_counts + row * STATE)
    most = tl.load(state_counts + row * STATE + 1)
    chosen = tl.load(state_counts + row * STATE + 2)
    above = tl.load(state_counts + row * STATE + 3)
    return Bracket(low, high, total_mass, length, most, chosen, above)


@triton.jit
def store_cut(cut_values, cut_counts, state_values, row, low, high, length, rest):
    """Store what ``load_cut`` returns; the total mass is that of the row's ``Bracket``.

    Addresses are of float32 and int32 [rows, STATE].
    """
    tl.store(cut_values + row * STATE, low)
    tl.store(cut_values + row * STATE + 1, high)
    total_mass = tl.load(state_values + row * STATE + 2)
    tl.store(cut_values + row * STATE + 2, total_mass)
    tl.store(cut_counts + row * STATE, length)
    tl.store(cut_counts + row * STATE + 1, rest)


@triton.jit
def load_cut(cut_values, cut_counts, row):
    """Return the ``Cut`` that ``store_cut`` stored."""
    low = tl.load(cut_values + row * STATE)
    high = tl.load(cut_values + row * STATE + 1)
    total_mass = tl.load(cut_values + row * STATE + 2)
    length = tl.load(cut_counts + row * STATE)
    rest = tl.load(cut_counts + row * STATE + 1)
    return Cut(low, high, total_mass, length, rest)


@triton.jit
def store_threshold(cut_counts, row, key, ties):
    """Store the threshold's key and ties behind the row's ``Cut``."""
    tl.store(cut_counts + row * STATE + 2, key)
    tl.store(cut_counts + row * STATE + 3, ties)


@triton.jit
def row_minimum(block_min, row, num_blocks, MAX_BLOCKS: tl.constexpr):
    """Return a row's smallest logit above -inf."""
    blocks = tl.arange(0, MAX_BLOCKS)
    minima = tl.load(
        block_min + row * num_blocks + blocks, mask=blocks < num_blocks, other=float("inf")
    )
    return tl.min(minima, axis=0)


@triton.jit
def column(bins, place, num_blocks, index, MAX_BLOCKS: tl.constexpr):
    """Return one bin of a row's blocks [MAX_BLOCKS]; zeros for the bin after the last."""
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = (blocks < num_blocks) & (index + tl.zeros_like(blocks) < BINS)
    return tl.load(bins + (place + blocks) * BINS + index, mask=inside, other=0)


@triton.jit
def choose_bin(
    row_bins, place, num_blocks, wanted_count, wanted_mass, most, MAX_BLOCKS: tl.constexpr
):
    """Return the highest bin at whose lower edge enough is kept; -1 if none is low enough.

    Args:
        row_bins: ``Bins``.
        place: Index of the row's first block.
        num_blocks: Blocks of the row.
        wanted_count: What is enough with top_k.
        wanted_mass: What is enough without.
        most: top_k, 0 for none.
        MAX_BLOCKS: Most blocks of a row.
    """
    blocks = tl.arange(0, MAX_BLOCKS)
    bins = tl.arange(0, BINS)
    offsets = (place + blocks)[:, None] * BINS + bins[None, :]
    inside = (blocks < num_blocks)[:, None] & (bins >= 0)[None, :]
    counts = tl.sum(tl.load(row_bins.counts + offsets, mask=inside, other=0), axis=0)
    masses = tl.sum(tl.load(row_bins.masses + offsets, mask=inside, other=0.0), axis=0)
    enough = tl.where(most > 0, counts >= wanted_count, masses >= wanted_mass)
    return tl.max(tl.where(enough, bins, -1), axis=0)


@triton.jit
def count_bins(
    logits,
    row,
    block,
    vocab,
    num_blocks,
    low,
    high,
    top,
    scale,
    stored,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Store number and mass of one block's tokens at or above each of 16 edges, below ``high``.

    The edges divide ``low`` to ``top`` evenly; the row's first block stores them. ``stored`` is the
    ``Bins`` that they go to.
    """
    place = row * num_blocks + block
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
        weights = mass_of(values, scale)
        usable = (values < high) & (values > float("-inf"))
        reached = (values[None, :] >= edge[:, None]) & usable[None, :]
        counts += reached.to(tl.int32)
        masses += tl.where(reached, weights[None, :], 0.0)
    tl.store(stored.counts + place * BINS + bins, tl.sum(counts, axis=1))
    tl.store(stored.masses + place * BINS + bins, tl.sum(masses, axis=1))
    if block == 0:
        tl.store(stored.edges + row * BINS + bins, edge)


@triton.jit
def first_bins(
    logits, temperature, top_k, top_p, min_p, block_max, block_arg, block_min,
    bin_count, bin_mass, edges, vocab, num_blocks,
    BLOCK: tl.constexpr, SLICE: tl.constexpr, MAX_BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Count one block into 16 bins below the row's largest logit. Program: (row, block).

    With min_p the lowest edge is its floor, so that bin 0 counts all that min_p leaves.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1)
    degrees = tl.load(temperature + row)
    cuts = truncation_of(row, vocab, top_k, top_p, min_p)
    largest, _token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    needed = (cuts.most > 0) | (cuts.part < 1.0) | (cuts.floor > 0.0)
    if (degrees >= GREEDY) & (largest > float("-inf")) & needed:
        low = tl.maximum(row_minimum(block_min, row, num_blocks, MAX_BLOCKS), largest - REACH)
        if cuts.floor > 0.0:
            low = largest + degrees * tl.log(cuts.floor)
        count_bins(
            logits, row, block, vocab, num_blocks, low, float("inf"), largest,
            Scale(largest, 1.0 / degrees), Bins(bin_count, bin_mass, edges), BLOCK, SLICE,
        )  # fmt: skip
