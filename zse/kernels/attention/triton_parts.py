"""Parts that the decode and the prefill attention share."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.rope_store.triton_heads import BLOCK_TOKENS, SCALE_CHANNELS

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(
    -1.0e30
)  # a score that no softmax notices; infinities would make not-a-number


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
def cache_lines(table, tokens, seen, kv_head, kv_heads, MASKED: tl.constexpr):
    """Return int64 lines of the cache that hold tokens of one sequence for one head."""
    at = table + tokens // BLOCK_TOKENS
    block = tl.load(at, mask=seen, other=0) if MASKED else tl.load(at)
    return (block.to(tl.int64) * kv_heads + kv_head) * BLOCK_TOKENS + tokens % BLOCK_TOKENS


@triton.jit
def hold(values, PLAIN: tl.constexpr):
    """Return the values, and keep the compiler from preparing them for a product before this place.

    Otherwise it waits for each tile where it was asked for, before it asks for the next one.
    """
    if PLAIN:
        held = values
    elif values.dtype == tl.int8:
        held = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.int8, is_pure=False, pack=4
        )
    else:
        held = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2
        )
    return held


@triton.jit
def load_stored(
    cache,
    cache_scales,
    lines,
    seen,
    first_column: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return some columns of keys or values as stored [T, WIDTH_PAD], zeros where not seen.

    Args:
        cache: Address of [lines, D], bfloat16 or int8.
        cache_scales: Address of float16 [lines, D / 32]; used for int8.
        lines: int64 [T].
        seen: [T] which tokens exist.
        first_column: Where the columns start.
        WIDTH: How many there are.
        WIDTH_PAD: The next power of two.
        HEAD_DIM: D.
        MASKED: Whether some tokens may be missing.

    Returns:
        The tile, and for int8 its scales [T, WIDTH / 32].
    """
    column = tl.arange(0, WIDTH_PAD)
    at = cache + lines[:, None] * HEAD_DIM + first_column + column[None, :]
    padded: tl.constexpr = WIDTH_PAD != WIDTH
    mask = seen[:, None] & (column < WIDTH)[None, :]
    stored = tl.load(at, mask=mask, other=0) if MASKED or padded else tl.load(at)
    if cache.dtype.element_ty == tl.int8:
        group = first_column // SCALE_CHANNELS + tl.arange(0, WIDTH // SCALE_CHANNELS)
        scale_at = cache_scales + lines[:, None] * (HEAD_DIM // SCALE_CHANNELS) + group[None, :]
        if MASKED:
            scales = tl.load(scale_at, mask=seen[:, None] & (group >= 0)[None, :], other=0.0)
        else:
            scales = tl.load(scale_at)
    else:
        scales = stored
    return stored, scales


@triton.jit
def decode(stored, scales):
    """Return the bfloat16 values [T, W] of a stored tile."""
    if stored.dtype == tl.int8:
        tokens: tl.constexpr = stored.shape[0]
        width: tl.constexpr = stored.shape[1]
        groups: tl.constexpr = scales.shape[1]
        codes = tl.reshape(stored, (tokens, groups, SCALE_CHANNELS)).to(tl.float32)
        wide = codes * tl.expand_dims(scales.to(tl.float32), 2)
        values = tl.reshape(wide, (tokens, width)).to(tl.bfloat16)
    else:
        values = stored
    return values
