"""Truncation, the end: the exact threshold inside the bracket, and a draw from what is kept.

One program a row. It searches the threshold by halving the range of order-preserving keys, over
the row's list, or, if that would have been too long (thousands of equal logits), over the row
itself: slow then, and as exact. Tokens that equal the threshold are kept lowest identity first.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton.common import (
    GREEDY,
    NOTHING,
    Scale,
    draw_from_blocks,
    first_past,
    load_comparable,
    mass_of,
    ordered_key,
    row_maximum,
    store_token,
    value_of_key,
)
from zse.kernels.lm_head_sample.triton.truncate import (
    SLACK,
    load_cut,
    store_threshold,
    truncation_of,
)
from zse.kernels.triton.parts import wait_for_inputs


class Pool(NamedTuple):
    """Where a row's candidates are: a list of logits, or the row itself."""

    source: tl.tensor
    """Address of float32 [length]."""
    listed: tl.tensor
    """Whether it is a list."""
    length: tl.tensor
    low: tl.tensor
    """Least logit of a candidate."""
    high: tl.tensor
    """Least logit above the candidates."""
    scale: Scale


class Threshold(NamedTuple):
    """What is kept of the candidates."""

    key: tl.tensor
    """Those with a larger key are."""
    ties: tl.tensor
    """So many of those with this key are, lowest identity first."""
    mass: tl.tensor
    """Mass of all that are kept."""


@triton.jit
def candidates(pool, start, CHUNK: tl.constexpr):
    """Return logits [CHUNK] of a piece of the pool, and which of them are candidates."""
    offsets = start + tl.arange(0, CHUNK)
    values = load_comparable(pool.source, offsets, pool.length)
    inside = (values >= pool.low) & (values < pool.high) & (values > float("-inf"))
    return values, inside


@triton.jit
def measure(pool, key, BY_COUNT: tl.constexpr, CHUNK: tl.constexpr):
    """Return number (BY_COUNT) or mass of the candidates whose key is at least ``key``."""
    sums = tl.zeros((CHUNK,), tl.int32 if BY_COUNT else tl.float32)
    for start in range(0, pool.length, CHUNK):
        values, inside = candidates(pool, start, CHUNK)
        reached = inside & (ordered_key(values) >= key)
        if BY_COUNT:
            sums += reached.to(tl.int32)
        else:
            sums += tl.where(reached, mass_of(values, pool.scale), 0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def search_key(pool, low_key, high_key, wanted, BY_COUNT: tl.constexpr, CHUNK: tl.constexpr):
    """Return the highest key in the range at which ``wanted`` is reached; else the lowest."""
    while low_key < high_key:
        # Rounded up, and without the overflow of a plain sum.
        middle = (low_key | high_key) - ((low_key ^ high_key) >> 1)
        reached = measure(pool, middle, BY_COUNT, CHUNK)
        if reached >= wanted:
            low_key = middle
        else:
            high_key = middle - 1
    return low_key


@triton.jit
def tally(pool, key, CHUNK: tl.constexpr):
    """Return number and mass of candidates above a key, and number at it."""
    counts = tl.zeros((CHUNK,), tl.int32)
    masses = tl.zeros((CHUNK,), tl.float32)
    equals = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, pool.length, CHUNK):
        values, inside = candidates(pool, start, CHUNK)
        keys = ordered_key(values)
        above = inside & (keys > key)
        counts += above.to(tl.int32)
        masses += tl.where(above, mass_of(values, pool.scale), 0.0)
        equals += (inside & (keys == key)).to(tl.int32)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0), tl.sum(equals, axis=0)


@triton.jit
def find_threshold(pool, rest, cuts, total_mass, above_mass, CHUNK: tl.constexpr):
    """Return the ``Threshold`` of top_k and top_p.

    Args:
        pool: The row's ``Pool``.
        rest: What is left of top_k for it.
        cuts: The row's ``Cuts``.
        total_mass: What top_p is a part of, unless top_k says it.
        above_mass: Mass of what lies above the bracket and is kept in any case.
        CHUNK: Candidates that are looked at together.
    """
    key = ordered_key(pool.low)
    high_key = ordered_key(tl.minimum(pool.high, pool.scale.largest))
    ties = NOTHING
    mass = 0.0
    if cuts.most > 0:
        key = search_key(pool, key, high_key, rest, True, CHUNK)
        count, mass, equals = tally(pool, key, CHUNK)
        ties = tl.minimum(rest - count, equals)
        mass += ties.to(tl.float32) * mass_of(value_of_key(key), pool.scale)
        total_mass = above_mass + mass
    if cuts.part < 1.0:
        wanted = cuts.part * total_mass * (1.0 - SLACK) - above_mass
        at = search_key(pool, key, high_key, wanted, False, CHUNK)
        _count, mass, equals = tally(pool, at, CHUNK)
        one = mass_of(value_of_key(at), pool.scale)
        needed = tl.ceil((wanted - mass) / tl.where(one > 0.0, one, 1.0))
        # At least one, so that a token is left whatever the sums round to.
        enough = tl.maximum(tl.minimum(needed, equals.to(tl.float32)), 1.0).to(tl.int32)
        ties = tl.where(at == key, tl.minimum(ties, enough), enough)
        key = at
        mass += tl.minimum(ties, equals).to(tl.float32) * one
    return Threshold(key, ties, mass)


@triton.jit
def draw_from_candidates(pool, identities, threshold, target, otherwise, CHUNK: tl.constexpr):
    """Return the candidate at ``target`` on the running mass of those kept, in their order.

    Args:
        pool: The row's ``Pool``.
        identities: Address of the tokens of the list, int32 [pool.length]; read if it is one.
        threshold: The row's ``Threshold``.
        target: In [0, mass of those kept).
        otherwise: The answer if none has mass.
        CHUNK: Candidates that are looked at together.
    """
    token = NOTHING
    last = -1
    before = 0.0
    seen = 0
    for start in range(0, pool.length, CHUNK):
        values, inside = candidates(pool, start, CHUNK)
        offsets = start + tl.arange(0, CHUNK)
        tokens = offsets
        if pool.listed:
            tokens = tl.load(identities + offsets, mask=offsets < pool.length, other=0)
        keys = ordered_key(values)
        equal = (inside & (keys == threshold.key)).to(tl.int32)
        rank = seen + tl.cumsum(equal, 0) - equal
        above = keys > threshold.key
        kept = inside & (above | ((keys == threshold.key) & (rank < threshold.ties)))
        weights = tl.where(kept, mass_of(values, pool.scale), 0.0)
        first, chunk_last = first_past(weights, tokens, target - before)
        token = tl.minimum(token, first)
        last = tl.maximum(last, chunk_last)
        before += tl.sum(weights, axis=0)
        seen += tl.sum(equal, axis=0)
    found = tl.where(token < NOTHING, token, last)
    return tl.where(found >= 0, found, otherwise)


@triton.jit
def draw_truncated(
    logits,
    row,
    otherwise,
    chance,
    cuts,
    scale,
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
    CHUNK: tl.constexpr,
):
    """Return a row's token: from above the bracket, or from the candidates that are kept."""
    blocks = tl.arange(0, MAX_BLOCKS)
    cut = load_cut(cut_values, cut_counts, row)
    masses = tl.load(kept_mass + row * num_blocks + blocks, mask=blocks < num_blocks, other=0.0)
    above_mass = tl.sum(masses, axis=0)
    length = cut.length
    listed = length <= CAPACITY
    source = list_values + row * CAPACITY
    if length > CAPACITY:
        source = logits + row.to(tl.int64) * vocab
        length = vocab
    pool = Pool(source, listed, length, cut.low, cut.high, scale)
    threshold = Threshold(ordered_key(cut.low), NOTHING, 0.0)
    if (cuts.most > 0) | (cuts.part < 1.0):
        threshold = find_threshold(pool, cut.rest, cuts, cut.total_mass, above_mass, CHUNK)
        store_threshold(cut_counts, row, threshold.key, threshold.ties)
    target = chance * (above_mass + threshold.mass)
    token = otherwise
    if (target < above_mass) | (threshold.mass <= 0.0):
        token = draw_from_blocks(
            logits, row, vocab, masses, target, scale, cut.high, otherwise, BLOCK, MAX_BLOCKS
        )
    else:
        identities = list_tokens + row * CAPACITY
        token = draw_from_candidates(
            pool, identities, threshold, target - above_mass, otherwise, CHUNK
        )
    return token


@triton.jit
def draw_tokens(
    logits, temperature, top_k, top_p, min_p, uniform, slots, block_max, block_arg, kept_mass,
    list_values, list_tokens, cut_values, cut_counts, tokens, last_tokens, vocab, num_blocks,
    BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr, CAPACITY: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Choose a row's token. Program: (row)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    largest, token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    degrees = tl.load(temperature + row)
    if (degrees >= GREEDY) & (largest > float("-inf")):
        cuts = truncation_of(row, vocab, top_k, top_p, min_p)
        chance = tl.load(uniform + row)
        token = draw_truncated(
            logits, row, token, chance, cuts, Scale(largest, 1.0 / degrees), kept_mass,
            list_values, list_tokens, cut_values, cut_counts, vocab, num_blocks,
            BLOCK, MAX_BLOCKS, CAPACITY, CHUNK,
        )  # fmt: skip
    store_token(tokens, last_tokens, slots, row, token)
