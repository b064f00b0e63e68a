"""A 16-bit matrix times one, two or four tokens; laid out as ``triton_decode``."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton_parts import split_of_pieces, store_token, tile_rows, token_of


@triton.jit
def plain_token(total, weight, values, m, eighths, piece, inside,
                T: tl.constexpr):  # fmt: skip
    """Add the products of one step with token m to ``total`` [R, T, C]."""
    same = tl.zeros((1, T, 1, 1), tl.int32)
    at = values + m * eighths * 8 + same + piece[None, None, :, None] * 8
    at += tl.arange(0, 8)[None, None, None, :]
    x = tl.load(at, mask=inside[None, None, :, None] & (same == 0), other=0.0)
    return total + tl.sum(weight * x.to(tl.float32), 3)


@triton.jit
def gemv_16(values, weights, outputs, rows, N, eighths,
            ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
            PDL: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for 16-bit weights and activations; a piece is 8 weights.

    Operands:
        values: bfloat16 [rows, K].
        weights: bfloat16 or float16 [N, K].
        outputs: float32 [splits, rows, N].
        rows: Tokens; a program takes ROWS of them.
        N: Rows of the matrix.
        eighths: K / 8.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin, end = split_of_pieces(eighths, C)
    n = tile_rows(R, T)
    row = tl.minimum(n, N - 1).to(tl.int64)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    lane = tl.arange(0, 8)
    at = weights + row[:, :, None, None] * (eighths * 8) + piece[:, None] * 8 + lane
    loaded = tl.load(at, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_wait()
    m0 = token_of(rows, 0, ROWS)
    m1 = token_of(rows, 1, ROWS)
    m2 = token_of(rows, 2, ROWS)
    m3 = token_of(rows, 3, ROWS)
    total0 = tl.zeros((R, T, C), tl.float32)
    total1 = total0
    total2 = total0
    total3 = total0
    for _ in range(begin, end, C):
        at += C * 8
        following = (piece + C) < end
        next_loaded = tl.load(at, mask=following[:, None], other=0.0, eviction_policy="evict_first")
        weight = loaded.to(tl.float32)
        total0 = plain_token(total0, weight, values, m0, eighths, piece, inside, T)
        if ROWS > 1:
            total1 = plain_token(total1, weight, values, m1, eighths, piece, inside, T)
        if ROWS > 2:
            total2 = plain_token(total2, weight, values, m2, eighths, piece, inside, T)
            total3 = plain_token(total3, weight, values, m3, eighths, piece, inside, T)
        loaded = next_loaded
        piece += C
        inside = following
    store_token(outputs, total0, n, 0, rows, N, ROWS)
    if ROWS > 1:
        store_token(outputs, total1, n, 1, rows, N, ROWS)
    if ROWS > 2:
        store_token(outputs, total2, n, 2, rows, N, ROWS)
        store_token(outputs, total3, n, 3, rows, N, ROWS)
