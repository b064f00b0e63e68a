"""Pieces that the sampling kernels share: logits made comparable, row maxima, inverse CDFs."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.layout import GREEDY_BELOW

NOTHING = tl.constexpr(2147483647)
"""An identity that no token has."""
LARGEST = tl.constexpr(3.4028234663852886e38)
GREEDY = tl.constexpr(GREEDY_BELOW)


class Scale(NamedTuple):
    """How a row's logits become masses, as ``mass_of`` computes them."""

    largest: tl.tensor
    """The row's largest logit."""
    inverse: tl.tensor
    """1 / temperature."""


@triton.jit
def load_comparable(source, offsets, length):
    """Return logits at offsets; NaN and what lies past the end are -inf.

    +inf is the largest number instead, so that differences stay numbers; -0 is +0, so that equal
    logits have equal bits.
    """
    values = tl.load(source + offsets, mask=offsets < length, other=float("-inf"))
    values = tl.where(values == values, values, float("-inf"))
    values = tl.minimum(values, LARGEST)
    return tl.where(values == 0.0, 0.0, values)


@triton.jit
def load_logits(logits, row, offsets, vocab):
    """Return one row's logits at offsets, comparable."""
    return load_comparable(logits + row.to(tl.int64) * vocab, offsets, vocab)


@triton.jit
def ordered_key(values):
    """Return i32 keys in the order of the float32 values; it is its own inverse on the bits."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of_key(key):
    """Return the float32 value of an i32 key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def mass_of(values, scale):
    """Return the probability of each logit relative to that of the row's largest."""
    return tl.exp((values - scale.largest) * scale.inverse)


@triton.jit
def row_maximum(block_max, block_arg, row, num_blocks, MAX_BLOCKS: tl.constexpr):
    """Return a row's largest logit and the lowest token that has it."""
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = blocks < num_blocks
    maxima = tl.load(block_max + row * num_blocks + blocks, mask=inside, other=float("-inf"))
    tokens = tl.load(block_arg + row * num_blocks + blocks, mask=inside, other=NOTHING)
    largest = tl.max(maxima, axis=0)
    return largest, tl.min(tl.where(maxima == largest, tokens, NOTHING), axis=0)


@triton.jit
def scaled_masses(block_max, block_mass, row, num_blocks, scale, MAX_BLOCKS: tl.constexpr):
    """Return [MAX_BLOCKS] masses of a row's blocks relative to the row's largest logit."""
    blocks = tl.arange(0, MAX_BLOCKS)
    inside = blocks < num_blocks
    place = row * num_blocks + blocks
    maxima = tl.load(block_max + place, mask=inside, other=float("-inf"))
    masses = tl.load(block_mass + place, mask=inside, other=0.0)
    return masses * mass_of(maxima, scale)


@triton.jit
def first_past(masses, places, target):
    """Return the first place whose running mass passes the target, and the last with any mass.

    A running sum may round down by a place; only places with mass are ever returned. ``NOTHING``
    and -1 stand for none.
    """
    running = tl.cumsum(masses, 0)
    has_mass = masses > 0.0
    first = tl.min(tl.where(has_mass & (running > target), places, NOTHING), axis=0)
    last = tl.max(tl.where(has_mass, places, -1), axis=0)
    return first, last


@triton.jit
def draw_from_blocks(
    logits,
    row,
    vocab,
    masses,
    target,
    scale,
    least,
    otherwise,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
):
    """Return the token at ``target`` on the running mass in order of identity.

    ``masses`` is fp32 [MAX_BLOCKS], of the tokens in each block that may be drawn: those whose
    logit is at least ``least``. ``otherwise`` is the answer if nothing has mass.
    """
    blocks = tl.arange(0, MAX_BLOCKS)
    first, last = first_past(masses, blocks, target)
    block = tl.where(first < NOTHING, first, tl.maximum(last, 0))
    before = tl.sum(tl.where(blocks < block, masses, 0.0), axis=0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, row, offsets, vocab)
    weights = tl.where(values >= least, mass_of(values, scale), 0.0)
    first, last = first_past(weights, offsets, target - before)
    found = tl.where(first < NOTHING, first, last)
    return tl.where(found >= 0, found, otherwise)


@triton.jit
def store_token(tokens, last_tokens, slots, row, token):
    """Write a row's token to the results and to its slot, where the next step finds it."""
    tl.store(tokens + row, token)
    tl.store(last_tokens + tl.load(slots + row), token)
