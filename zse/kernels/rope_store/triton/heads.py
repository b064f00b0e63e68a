"""Heads of q, k and v in registers: read, normalized, rotated, and written to the cache.

A head is held as two halves, because dimension i turns with dimension i + D / 2.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels import layout
from zse.kernels.triton.parts import round_to_even, to_bf16

BLOCK_TOKENS = tl.constexpr(layout.BLOCK_TOKENS)
SCALE_CHANNELS = tl.constexpr(layout.SCALE_CHANNELS)
NARROW_SCALE_CHANNELS = tl.constexpr(layout.NARROW_SCALE_CHANNELS)
TURNED_CHANNELS = tl.constexpr(layout.TURNED_CHANNELS)
LARGEST_NARROW_SCALE = tl.constexpr(57344.0)
"""Of those that the upper byte of a float16 holds."""
KEPT_LENGTH = tl.constexpr(layout.TURNED_CHANNELS**-0.5)


class Stored(NamedTuple):
    """Keys or values as the cache holds them: addresses of all of them, or a tile of some."""

    elements: tl.tensor
    """int8 or bfloat16 [..., D]; or uint8 [..., D / 2], column i and above it column i + D / 2."""
    scales: tl.tensor
    """float16 [..., D / 32], used for int8; uint8 [..., D / 16], used for uint8."""


@triton.jit
def load_halves(weight, HALF: tl.constexpr, HALF_PAD: tl.constexpr):
    """Return both halves of a vector [D] as [1, HALF_PAD], zeros past D / 2."""
    column = tl.arange(0, HALF_PAD)
    inside = column < HALF
    first = tl.load(weight + column, mask=inside, other=0.0)[None, :]
    return first, tl.load(weight + HALF + column, mask=inside, other=0.0)[None, :]


@triton.jit
def pair_columns(column, rotary_half, HEAD_DIM: tl.constexpr):
    """Return the columns of a head in which each of the pairs ``column`` lies.

    The first ``rotary_half`` pairs turn: i with i + rotary_half, in the first columns of the head.
    The rest is paired in any way, for it does not turn.
    """
    turns = column < rotary_half
    first = tl.where(turns, column, column + rotary_half)
    return first, tl.where(turns, column + rotary_half, column + HEAD_DIM // 2)


@triton.jit
def load_pairs(weight, rotary_half, HEAD_DIM: tl.constexpr, HALF_PAD: tl.constexpr):
    """Return a vector [D] in the order of ``pair_columns``, as halves [1, HALF_PAD]."""
    column = tl.arange(0, HALF_PAD)
    inside = column < HEAD_DIM // 2
    first, second = pair_columns(column, rotary_half, HEAD_DIM)
    first = tl.load(weight + first, mask=inside, other=0.0)[None, :]
    return first, tl.load(weight + second, mask=inside, other=0.0)[None, :]


@triton.jit
def load_angles(cosines_sines, position, column, rotary_half):
    """Return cosines and sines [1, W] of the pairs ``column`` at a position; others do not turn."""
    at = cosines_sines + position.to(tl.int64) * 2 * rotary_half + column
    turns = column < rotary_half
    cosines = tl.load(at, mask=turns, other=1.0)[None, :]
    return cosines, tl.load(at + rotary_half, mask=turns, other=0.0)[None, :]


@triton.jit
def head_norm_factor(first, second, epsilon, HEAD_DIM: tl.constexpr):
    """Return 1 / rms of each head of [H, D / 2] halves, as [H, 1]."""
    squares = tl.sum(first * first + second * second, axis=1)
    return tl.rsqrt(squares / HEAD_DIM + epsilon)[:, None]


@triton.jit
def rotate(first, second, cosines, sines):
    """Rotate [H, D / 2] halves by angles [1 or H, D / 2]."""
    return first * cosines - second * sines, second * cosines + first * sines


@triton.jit
def balance_heads(
    halves, key_factors, has_factors, kv_head, is_query, is_key, columns, QUANTIZED: tl.constexpr
):
    """Return rotated halves [H, W]: of keys divided by their factors, of queries multiplied.

    Args:
        halves: Of queries, keys and values.
        key_factors: Address of float32 [kv_heads, D], powers of two: products stay what they are.
        has_factors: Whether there are any.
        kv_head: int32 [H], whose factors a head has.
        is_query: [H].
        is_key: [H].
        columns: Of the first halves and of the second ones, each [W], and which exist, [H, W].
        QUANTIZED: Whether the cache is int8; there are no factors else.
    """
    first, second = halves
    if QUANTIZED:  # noqa: SIM102 - known when the kernel is compiled
        if has_factors != 0:
            first_column, second_column, exists, head_dim = columns
            mask = exists & (is_query | is_key)[:, None]
            line = key_factors + kv_head[:, None] * head_dim
            first_factor = tl.load(line + first_column[None, :], mask=mask, other=1.0)
            second_factor = tl.load(line + second_column[None, :], mask=mask, other=1.0)
            first_factor = tl.where(is_key[:, None], 1.0 / first_factor, first_factor)
            second_factor = tl.where(is_key[:, None], 1.0 / second_factor, second_factor)
            first = first * first_factor
            second = second * second_factor
    return first, second


@triton.jit
def turn_runs(values):
    """Return float32 [H, W] with each run of 32 columns turned by Hadamard's signs.

    Lengths and products stay what they are. Each stage takes columns i and i + 16 to 2 i and 2 i +
    1, so that after five of them every column is where it was.
    """
    heads: tl.constexpr = values.shape[0]
    width: tl.constexpr = values.shape[1]
    runs: tl.constexpr = heads * width // TURNED_CHANNELS
    run = tl.reshape(values, (runs, 2, TURNED_CHANNELS // 2))
    for _ in tl.static_range(5):
        first, second = tl.split(tl.permute(run, (0, 2, 1)))
        run = tl.reshape(tl.join(first + second, first - second), (runs, 2, TURNED_CHANNELS // 2))
    return tl.reshape(run, (heads, width)) * KEPT_LENGTH


@triton.jit
def turn_heads(first, second, NARROW: tl.constexpr):
    """Return both halves [H, D / 2] of queries or keys, turned for a cache of four bits."""
    if NARROW:
        first = turn_runs(first)
        second = turn_runs(second)
    return first, second


@triton.jit
def narrow_scale(byte):
    """Return the float32 that an upper byte of a float16 stands for."""
    return (byte.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def encode_narrow(values):
    """Return codes int32 0 to 15 [H, W], scales uint8 [H, W / 16], and what they mean [H, W].

    What is largest in a group has code 0, eight steps from the middle: of sixteen codes none is
    lost to symmetry.
    """
    heads: tl.constexpr = values.shape[0]
    width: tl.constexpr = values.shape[1]
    count: tl.constexpr = width // NARROW_SCALE_CHANNELS
    groups = tl.reshape(values, (heads, count, NARROW_SCALE_CHANNELS))
    highest = tl.max(groups, axis=2)
    lowest = tl.min(groups, axis=2)
    exact = tl.where(highest >= -lowest, highest, lowest) * -0.125
    exact = tl.minimum(tl.maximum(exact, -LARGEST_NARROW_SCALE), LARGEST_NARROW_SCALE)
    bits = exact.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    scales = ((bits + 0x80) >> 8).to(tl.uint8)
    wide = narrow_scale(scales)
    inverse = tl.where(wide != 0.0, 1.0 / tl.where(wide != 0.0, wide, 1.0), 0.0)
    codes = round_to_even(groups * tl.expand_dims(inverse, 2))
    codes = tl.minimum(tl.maximum(codes, -8.0), 7.0)
    restored = tl.reshape(codes * tl.expand_dims(wide, 2), (heads, width))
    return tl.reshape(codes + 8.0, (heads, width)).to(tl.int32), scales, restored


@triton.jit
def write_packed(cache, low, high, lines, mask, HEAD_DIM: tl.constexpr):
    """Write codes [H, D / 2] of both halves of each head as bytes; ``mask`` is theirs."""
    column = tl.arange(0, low.shape[1])[None, :]
    at = cache.elements + lines[:, None] * (HEAD_DIM // 2) + column
    tl.store(at, (low | (high << 4)).to(tl.uint8), mask=mask)


@triton.jit
def write_narrow_scales(
    cache, scales, lines, mask, first_column: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Write scales [H, W / 16] of the columns [H, W] that ``mask`` is of."""
    heads: tl.constexpr = scales.shape[0]
    groups: tl.constexpr = scales.shape[1]
    a_line: tl.constexpr = HEAD_DIM // NARROW_SCALE_CHANNELS
    first: tl.constexpr = first_column // NARROW_SCALE_CHANNELS
    at = lines[:, None] * a_line + first + tl.arange(0, groups)[None, :]
    grouped = tl.reshape(mask.to(tl.int32), (heads, groups, NARROW_SCALE_CHANNELS))
    tl.store(cache.scales + at, scales, mask=tl.max(grouped, axis=2) > 0)


@triton.jit
def write_narrow(cache, first, second, lines, mask, HEAD_DIM: tl.constexpr):
    """Write both halves [H, D / 2] of each head in four bits; return what they mean."""
    half: tl.constexpr = HEAD_DIM // 2
    low, low_scales, first = encode_narrow(first)
    high, high_scales, second = encode_narrow(second)
    write_packed(cache, low, high, lines, mask, HEAD_DIM)
    write_narrow_scales(cache, low_scales, lines, mask, 0, HEAD_DIM)
    write_narrow_scales(cache, high_scales, lines, mask, half, HEAD_DIM)
    return first, second


@triton.jit
def write_whole(cache, values, lines, mask, HEAD_DIM: tl.constexpr):
    """Write heads [H, D] in four bits; return what they mean."""
    heads: tl.constexpr = values.shape[0]
    half: tl.constexpr = HEAD_DIM // 2
    codes, scales, restored = encode_narrow(values)
    low, high = tl.split(tl.permute(tl.reshape(codes, (heads, 2, half)), (0, 2, 1)))
    whole = tl.permute(tl.reshape(mask.to(tl.int32), (heads, 2, half)), (0, 2, 1))
    kept, _ = tl.split(whole)
    write_packed(cache, low, high, lines, kept > 0, HEAD_DIM)
    write_narrow_scales(cache, scales, lines, mask, 0, HEAD_DIM)
    return restored


@triton.jit
def line_of(block, position, kv_head, kv_heads):
    """Return the int64 line of the cache [lines, D] that holds a head of the token at a position.

    Args:
        block: int64, the block of the cache that holds the token.
        position: int32, in the sequence or from the start of any block.
        kv_head: Which of the key-value heads.
        kv_heads: How many there are.
    """
    return (block * kv_heads + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS


@triton.jit
def encode(values, QUANTIZED: tl.constexpr, PLAIN: tl.constexpr):
    """Return what the cache holds of float32 [H, W], as ``Stored``, and its meaning [H, W].

    Scales are rounded to 16 bits before the codes are made, so that the codes fit them.
    """
    if QUANTIZED:
        heads: tl.constexpr = values.shape[0]
        width: tl.constexpr = values.shape[1]
        groups = tl.reshape(values, (heads, width // SCALE_CHANNELS, SCALE_CHANNELS))
        scales = (tl.max(tl.abs(groups), axis=2) / 127.0).to(tl.float16)
        wide = scales.to(tl.float32)
        inverse = 1.0 / tl.where(wide > 0.0, wide, 1.0)
        codes = round_to_even(groups * tl.expand_dims(inverse, 2))
        codes = tl.where(tl.expand_dims(wide, 2) > 0.0, codes, 0.0)
        restored = tl.reshape(codes * tl.expand_dims(wide, 2), (heads, width))
        stored = Stored(tl.reshape(codes, (heads, width)).to(tl.int8), scales)
    else:
        stored = Stored(to_bf16(values, PLAIN), values)
        restored = stored.elements.to(tl.float32)
    return stored, restored


@triton.jit
def write_columns(
    cache,
    values,
    lines,
    mask,
    first_column: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Write some columns of each head to its line of the cache; return what they mean there.

    Args:
        cache: ``Stored`` addresses of all keys or of all values.
        values: float32 [H, W].
        lines: int64 [H], the line of each head.
        mask: [H, W] what to write.
        first_column: Where the columns start in a line; in four bits they are all of it.
        HEAD_DIM: D.
        PLAIN: Whether plain arithmetic stands in for what the interpreter lacks.

    Returns:
        float32 [H, W], the values as a reader of the cache sees them.
    """
    if cache.elements.dtype.element_ty == tl.uint8:
        restored = write_whole(cache, values, lines, mask, HEAD_DIM)
    else:
        restored = write_wide(cache, values, lines, mask, first_column, HEAD_DIM, PLAIN)
    return restored


@triton.jit
def write_wide(
    cache,
    values,
    lines,
    mask,
    first_column: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Write columns in bfloat16 or int8; see ``write_columns``."""
    quantized: tl.constexpr = cache.elements.dtype.element_ty == tl.int8
    heads: tl.constexpr = values.shape[0]
    width: tl.constexpr = values.shape[1]
    columns = tl.arange(0, width)[None, :]
    stored, restored = encode(values, quantized, PLAIN)
    at = cache.elements + lines[:, None] * HEAD_DIM + first_column + columns
    tl.store(at, stored.elements, mask=mask)
    if quantized:
        a_line: tl.constexpr = HEAD_DIM // SCALE_CHANNELS
        groups: tl.constexpr = width // SCALE_CHANNELS
        at = (
            lines[:, None] * a_line + first_column // SCALE_CHANNELS + tl.arange(0, groups)[None, :]
        )
        kept = tl.max(tl.reshape(mask.to(tl.int32), (heads, groups, SCALE_CHANNELS)), axis=2)
        tl.store(cache.scales + at, stored.scales, mask=kept > 0)
    return restored


@triton.jit
def write_halves(cache, first, second, lines, mask, HEAD_DIM: tl.constexpr, PLAIN: tl.constexpr):
    """Write both halves [H, D / 2] of each head; return what they mean. See ``write_columns``."""
    half: tl.constexpr = HEAD_DIM // 2
    if cache.elements.dtype.element_ty == tl.uint8:
        first, second = write_narrow(cache, first, second, lines, mask, HEAD_DIM)
    else:
        first = write_wide(cache, first, lines, mask, 0, HEAD_DIM, PLAIN)
        second = write_wide(cache, second, lines, mask, half, HEAD_DIM, PLAIN)
    return first, second
