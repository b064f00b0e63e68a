"""Parts that the decode and the prefill attention share."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.rope_store.triton.heads import (
    BLOCK_TOKENS,
    NARROW_SCALE_CHANNELS,
    SCALE_CHANNELS,
    Stored,
    line_of,
    narrow_scale,
)

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)
"""A score that no softmax notices; infinities would make not-a-number."""


class Heads(NamedTuple):
    """The key-value head that is worked on, and the query heads that share it."""

    kv_head: tl.tensor
    kv_heads: tl.tensor
    """Key-value heads there are."""
    num_heads: tl.tensor
    """Query heads there are."""
    group: tl.tensor
    """Query heads that share a key-value head."""


class Context(NamedTuple):
    """The cached tokens of one sequence, for one key-value head."""

    key_cache: Stored
    """Addresses of all keys."""
    value_cache: Stored
    table: tl.tensor
    """Address of the sequence's blocks, int32."""
    end: tl.tensor
    """How many tokens there are."""
    heads: Heads


class Softmax(NamedTuple):
    """What is known of H queries' softmax after some of the cached tokens, float32."""

    largest: tl.tensor
    """[H], the largest score to base 2."""
    total: tl.tensor
    """[H], the sum of ``2 ** (score - largest)``."""
    attended: tl.tensor
    """[H, D], the sum of values with these weights."""


@triton.jit
def dot(left, right, total, PLAIN: tl.constexpr):
    """Return total + left @ right of bfloat16 operands; the interpreter has no bfloat16 product."""
    if PLAIN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total)


@triton.jit
def cap(scores, softcap, SOFTCAP: tl.constexpr):
    """Return scores to base 2; with a softcap, ``softcap * tanh(scores / softcap)`` first."""
    if SOFTCAP:
        slope = tl.maximum(tl.minimum(2.0 * scores / softcap, 80.0), -80.0)
        scores = (2.0 * tl.sigmoid(slope) - 1.0) * softcap * LOG2_E
    return scores


@triton.jit
def cache_lines(context, tokens, seen, MASKED: tl.constexpr):
    """Return int64 lines [T] of the cache that hold tokens [T] of a context."""
    at = context.table + tokens // BLOCK_TOKENS
    block = tl.load(at, mask=seen, other=0) if MASKED else tl.load(at)
    return line_of(block.to(tl.int64), tokens, context.heads.kv_head, context.heads.kv_heads)


@triton.jit
def hold(stored, PLAIN: tl.constexpr):
    """Return the ``Stored`` tile, and keep the compiler from preparing it for a product before.

    Otherwise it waits for each tile where it was asked for, before it asks for the next one.
    """
    elements = stored.elements
    if PLAIN:
        held = elements
    elif elements.dtype == tl.int8:
        held = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [elements], dtype=tl.int8, is_pure=False, pack=4
        )
    elif elements.dtype == tl.uint8:
        held = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [elements], dtype=tl.uint8, is_pure=False, pack=4
        )
    else:
        held = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [elements], dtype=elements.dtype, is_pure=False, pack=2
        )
    return Stored(held, stored.scales)


@triton.jit
def load_stored(
    cache,
    lines,
    seen,
    first_column: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return some columns of keys or values of T cached tokens, zeros where not seen.

    Args:
        cache: ``Stored`` addresses of all keys or of all values.
        lines: int64 [T].
        seen: [T] which tokens exist.
        first_column: Where the columns start.
        WIDTH: How many there are.
        WIDTH_PAD: The next power of two.
        HEAD_DIM: D.
        MASKED: Whether some tokens may be missing.

    Returns:
        ``Stored``: elements [T, WIDTH_PAD], and for int8 scales [T, WIDTH / 32]. In four bits an
        element is the byte that has a column, and another one above or below it.
    """
    if cache.elements.dtype.element_ty == tl.uint8:
        stored = load_narrow(cache, lines, seen, first_column, WIDTH, HEAD_DIM, MASKED)
    else:
        stored = load_wide(cache, lines, seen, first_column, WIDTH, WIDTH_PAD, HEAD_DIM, MASKED)
    return stored


@triton.jit
def load_narrow(
    cache,
    lines,
    seen,
    first_column: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return columns in four bits; see ``load_stored``. WIDTH is that of a head or of its half."""
    half: tl.constexpr = HEAD_DIM // 2
    column = tl.arange(0, WIDTH)
    at = cache.elements + lines[:, None] * half + (column % half)[None, :]
    group = first_column // NARROW_SCALE_CHANNELS + tl.arange(0, WIDTH // NARROW_SCALE_CHANNELS)
    scale_at = cache.scales + lines[:, None] * (HEAD_DIM // NARROW_SCALE_CHANNELS) + group[None, :]
    if MASKED:
        elements = tl.load(at, mask=seen[:, None] & (column >= 0)[None, :], other=0)
        scales = tl.load(scale_at, mask=seen[:, None] & (group >= 0)[None, :], other=0)
    else:
        elements = tl.load(at)
        scales = tl.load(scale_at)
    return Stored(elements, scales)


@triton.jit
def load_wide(
    cache,
    lines,
    seen,
    first_column: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return columns in bfloat16 or int8; see ``load_stored``."""
    column = tl.arange(0, WIDTH_PAD)
    at = cache.elements + lines[:, None] * HEAD_DIM + first_column + column[None, :]
    padded: tl.constexpr = WIDTH_PAD != WIDTH
    mask = seen[:, None] & (column < WIDTH)[None, :]
    elements = tl.load(at, mask=mask, other=0) if MASKED or padded else tl.load(at)
    if elements.dtype == tl.int8:
        group = first_column // SCALE_CHANNELS + tl.arange(0, WIDTH // SCALE_CHANNELS)
        scale_at = cache.scales + lines[:, None] * (HEAD_DIM // SCALE_CHANNELS) + group[None, :]
        if MASKED:
            scales = tl.load(scale_at, mask=seen[:, None] & (group >= 0)[None, :], other=0.0)
        else:
            scales = tl.load(scale_at)
    else:
        scales = elements
    return Stored(elements, scales)


@triton.jit
def decode(stored, PART: tl.constexpr = "whole"):
    """Return the bfloat16 values [T, W] of a ``Stored`` tile.

    PART is looked at in four bits: whether they are whole heads, or the first or second half.
    """
    if stored.elements.dtype == tl.uint8:
        values = decode_narrow(stored, PART)
    elif stored.elements.dtype == tl.int8:
        tokens: tl.constexpr = stored.elements.shape[0]
        width: tl.constexpr = stored.elements.shape[1]
        groups: tl.constexpr = stored.scales.shape[1]
        # A number of the mantissa of 2**23: four times as fast as a conversion.
        bits = (stored.elements.to(tl.int32) & 0xFF) ^ 0x4B000080
        numbers = bits.to(tl.float32, bitcast=True) - 8388736.0
        codes = tl.reshape(numbers, (tokens, groups, SCALE_CHANNELS))
        wide = codes * tl.expand_dims(stored.scales.to(tl.float32), 2)
        values = tl.reshape(wide, (tokens, width)).to(tl.bfloat16)
    else:
        values = stored.elements
    return values


@triton.jit
def decode_narrow(stored, PART: tl.constexpr):
    """Return the bfloat16 values [T, W] of bytes that have two columns each; see ``decode``.

    Values are exact: a code has four bits and a scale three.
    """
    tokens: tl.constexpr = stored.elements.shape[0]
    width: tl.constexpr = stored.elements.shape[1]
    groups: tl.constexpr = stored.scales.shape[1]
    packed = stored.elements.to(tl.int32)
    if PART == "second":
        codes = packed >> 4
    elif PART == "first":
        codes = packed & 15
    else:
        shift = 4 * (tl.arange(0, width) // (width // 2))
        codes = (packed >> shift[None, :]) & 15
    numbers = (codes | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0
    grouped = tl.reshape(numbers, (tokens, groups, NARROW_SCALE_CHANNELS))
    wide = grouped * tl.expand_dims(narrow_scale(stored.scales), 2)
    return tl.reshape(wide, (tokens, width)).to(tl.bfloat16)
