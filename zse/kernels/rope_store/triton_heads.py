"""Heads of q, k and v in registers: read, normalized, rotated, and written to the cache.

A head is held as two halves, because dimension i turns with dimension i + D / 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.norm.triton_parts import round_to_even, to_bf16

BLOCK_TOKENS = tl.constexpr(32)
SCALE_CHANNELS = tl.constexpr(32)


@triton.jit
def load_bias(bias, offsets, mask, has_bias):
    """Return a tile of the bias, or zeros when there is none."""
    wanted = (tl.zeros(offsets.shape, tl.int32) + has_bias) > 0
    return tl.load(bias + offsets, mask=mask & wanted, other=0.0)


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
def encode(values, QUANTIZED: tl.constexpr, PLAIN: tl.constexpr):
    """Return what the cache holds of [H, W]: stored values, scales [H, W / 32], and their meaning.

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
        stored = tl.reshape(codes, (heads, width)).to(tl.int8)
    else:
        stored = to_bf16(values, PLAIN)
        scales = values
        restored = stored.to(tl.float32)
    return stored, scales, restored


@triton.jit
def write_half(
    cache,
    cache_scales,
    stored,
    scales,
    lines,
    columns,
    mask,
    first_column: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    QUANTIZED: tl.constexpr,
):
    """Write one encoded half of each head to its line of the cache.

    Args:
        cache: Address of [lines, D].
        cache_scales: Address of float16 [lines, D / 32]; used for int8.
        stored: Encoded values [H, W].
        scales: [H, W / 32].
        lines: int64 [H], line of each head: (block * kv_heads + kv_head) * 32 + token.
        columns: [1, W] column inside the half.
        mask: [H, W] what to write.
        first_column: 0 or D / 2.
        HEAD_DIM: D.
        QUANTIZED: Whether the cache is int8.
    """
    tl.store(cache + lines[:, None] * HEAD_DIM + first_column + columns, stored, mask=mask)
    if QUANTIZED:
        a_line: tl.constexpr = HEAD_DIM // SCALE_CHANNELS
        heads: tl.constexpr = stored.shape[0]
        groups: tl.constexpr = stored.shape[1] // SCALE_CHANNELS
        at = (
            lines[:, None] * a_line + first_column // SCALE_CHANNELS + tl.arange(0, groups)[None, :]
        )
        kept = tl.max(tl.reshape(mask.to(tl.int32), (heads, groups, SCALE_CHANNELS)), axis=2)
        tl.store(cache_scales + at, scales, mask=kept > 0)
