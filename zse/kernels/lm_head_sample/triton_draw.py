"""Truncation, the end: the exact threshold inside the bracket, and a draw from what is kept.

One program a row. It searches the threshold by halving the range of order-preserving keys, over
the row's list, or, if that would have been too long (thousands of equal logits), over the row
itself: slow then, and as exact. Tokens that equal the threshold are kept lowest identity first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.lm_head_sample.triton_common import (
    GREEDY,
    NOTHING,
    draw_from_blocks,
    first_past,
    load_comparable,
    ordered_key,
    row_maximum,
    store_token,
    value_of_key,
)
from zse.kernels.lm_head_sample.triton_truncate import SLACK, STATE, truncation_of


@triton.jit
def candidates(source, start, length, low, high, CHUNK: tl.constexpr):
    """Return logits of a piece of the source, and which of them are in the bracket."""
    offsets = start + tl.arange(0, CHUNK)
    values = load_comparable(source, offsets, length)
    return values, (values >= low) & (values < high) & (values > float("-inf"))


@triton.jit
def measure(
    source, length, low, high, key, largest, inverse, BY_COUNT: tl.constexpr, CHUNK: tl.constexpr
):
    """Return number (BY_COUNT) or mass of the candidates whose key is at least ``key``."""
    sums = tl.zeros((CHUNK,), tl.int32 if BY_COUNT else tl.float32)
    for start in range(0, length, CHUNK):
        values, inside = candidates(source, start, length, low, high, CHUNK)
        reached = inside & (ordered_key(values) >= key)
        if BY_COUNT:
            sums += reached.to(tl.int32)
        else:
            sums += tl.where(reached, tl.exp((values - largest) * inverse), 0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def search_key(
    source,
    length,
    low,
    high,
    low_key,
    high_key,
    wanted,
    largest,
    inverse,
    BY_COUNT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Return the highest key in the range at which ``wanted`` is reached; else the lowest."""
    while low_key < high_key:
        # Rounded up, and without the overflow of a plain sum.
        middle = (low_key | high_key) - ((low_key ^ high_key) >> 1)
        reached = measure(source, length, low, high, middle, largest, inverse, BY_COUNT, CHUNK)
        if reached >= wanted:
            low_key = middle
        else:
            high_key = middle - 1
    return low_key


@triton.jit
def tally(source, length, low, high, key, largest, inverse, CHUNK: tl.constexpr):
    """Return number and mass of candidates above a key, and number at it."""
    counts = tl.zeros((CHUNK,), tl.int32)
    masses = tl.zeros((CHUNK,), tl.float32)
    equals = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, length, CHUNK):
        values, inside = candidates(source, start, length, low, high, CHUNK)
        keys = ordered_key(values)
        above = inside & (keys > key)
        counts += above.to(tl.int32)
        masses += tl.where(above, tl.exp((values - largest) * inverse), 0.0)
        equals += (inside & (keys == key)).to(tl.int32)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0), tl.sum(equals, axis=0)


@triton.jit
def find_threshold(
    source,
    length,
    low,
    high,
    rest,
    most,
    part,
    total_mass,
    above_mass,
    largest,
    inverse,
    CHUNK: tl.constexpr,
):
    """Return (key, ties kept at it, mass kept in the bracket). Program: (row).

    ``rest`` is what is left of top_k for the bracket; ``total_mass`` is what top_p is a part of,
    unless top_k says it; ``above_mass`` lies above the bracket and is kept in any case.
    """
    key = ordered_key(low)
    high_key = ordered_key(tl.minimum(high, largest))
    ties = NOTHING
    mass = 0.0
    if most > 0:
        key = search_key(
            source, length, low, high, key, high_key, rest, largest, inverse, True, CHUNK
        )
        count, mass, equals = tally(source, length, low, high, key, largest, inverse, CHUNK)
        ties = tl.minimum(rest - count, equals)
        mass += ties.to(tl.float32) * tl.exp((value_of_key(key) - largest) * inverse)
        total_mass = above_mass + mass
    if part < 1.0:
        wanted = part * total_mass * (1.0 - SLACK) - above_mass
        at = search_key(
            source, length, low, high, key, high_key, wanted, largest, inverse, False, CHUNK
        )
        _count, mass, equals = tally(source, length, low, high, at, largest, inverse, CHUNK)
        one = tl.exp((value_of_key(at) - largest) * inverse)
        needed = tl.ceil((wanted - mass) / tl.where(one > 0.0, one, 1.0))
        # At least one, so that a token is left whatever the sums round to.
        enough = tl.maximum(tl.minimum(needed, equals.to(tl.float32)), 1.0).to(tl.int32)
        ties = tl.where(at == key, tl.minimum(ties, enough), enough)
        key = at
        mass += tl.minimum(ties, equals).to(tl.float32) * one
    return key, ties, mass


@triton.jit
def draw_from_candidates(
    source,
    identities,
    listed,
    length,
    low,
    high,
    key,
    ties,
    target,
    largest,
    inverse,
    otherwise,
    CHUNK: tl.constexpr,
):
    """Return the candidate at ``target`` on the running mass of those kept, in their order."""
    token = NOTHING
    last = -1
    before = 0.0
    seen = 0
    for start in range(0, length, CHUNK):
        values, inside = candidates(source, start, length, low, high, CHUNK)
        offsets = start + tl.arange(0, CHUNK)
        tokens = offsets
        if listed:
            tokens = tl.load(identities + offsets, mask=offsets < length, other=0)
        keys = ordered_key(values)
        equal = (inside & (keys == key)).to(tl.int32)
        rank = seen + tl.cumsum(equal, 0) - equal
        kept = inside & ((keys > key) | ((keys == key) & (rank < ties)))
        weights = tl.where(kept, tl.exp((values - largest) * inverse), 0.0)
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
    degrees,
    chance,
    most,
    part,
    largest,
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
    inverse = 1.0 / degrees
    blocks = tl.arange(0, MAX_BLOCKS)
    low = tl.load(cut_values + row * STATE)
    high = tl.load(cut_values + row * STATE + 1)
    total_mass = tl.load(cut_values + row * STATE + 2)
    length = tl.load(cut_counts + row * STATE)
    rest = tl.load(cut_counts + row * STATE + 1)
    masses = tl.load(kept_mass + row * num_blocks + blocks, mask=blocks < num_blocks, other=0.0)
    above_mass = tl.sum(masses, axis=0)
    listed = length <= CAPACITY
    source = list_values + row * CAPACITY
    if length > CAPACITY:
        source = logits + row.to(tl.int64) * vocab
        length = vocab
    key = ordered_key(low)
    ties = NOTHING
    mass = 0.0
    if (most > 0) | (part < 1.0):
        key, ties, mass = find_threshold(
            source,
            length,
            low,
            high,
            rest,
            most,
            part,
            total_mass,
            above_mass,
            largest,
            inverse,
            CHUNK,
        )
        tl.store(cut_counts + row * STATE + 2, key)
        tl.store(cut_counts + row * STATE + 3, ties)
    target = chance * (above_mass + mass)
    token = otherwise
    if (target < above_mass) | (mass <= 0.0):
        token = draw_from_blocks(
            logits,
            row,
            vocab,
            masses,
            target,
            largest,
            inverse,
            high,
            otherwise,
            BLOCK,
            MAX_BLOCKS,
        )
    else:
        token = draw_from_candidates(
            source,
            list_tokens + row * CAPACITY,
            listed,
            length,
            low,
            high,
            key,
            ties,
            target - above_mass,
            largest,
            inverse,
            otherwise,
            CHUNK,
        )
    return token


@triton.jit
def draw_tokens(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    slots,
    block_max,
    block_arg,
    kept_mass,
    list_values,
    list_tokens,
    cut_values,
    cut_counts,
    tokens,
    last_tokens,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Choose a row's token. Program: (row)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    largest, token = row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS)
    degrees = tl.load(temperature + row)
    if (degrees >= GREEDY) & (largest > float("-inf")):
        most, part, _floor = truncation_of(row, vocab, top_k, top_p, min_p)
        token = draw_truncated(
            logits,
            row,
            token,
            degrees,
            tl.load(uniform + row),
            most,
            part,
            largest,
            kept_mass,
            list_values,
            list_tokens,
            cut_values,
            cut_counts,
            vocab,
            num_blocks,
            BLOCK,
            MAX_BLOCKS,
            CAPACITY,
            CHUNK,
        )
    store_token(tokens, last_tokens, slots, row, token)
