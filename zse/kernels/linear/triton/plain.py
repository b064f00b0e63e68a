"""A 16-bit matrix times one, two or four tokens; laid out as ``decode``."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import (
    split_of_pieces,
    store_totals,
    tile_rows,
    tile_tokens,
    zero_totals,
)


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
    n, row = tile_rows(N, R, T)
    row = row.to(tl.int64)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    at = weights + row[:, :, None, None] * (eighths * 8) + piece[:, None] * 8 + tl.arange(0, 8)
    loaded = tl.load(at, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_wait()
    tokens = tile_tokens(rows, ROWS)
    totals = zero_totals(ROWS, R, T, C)
    for _ in range(begin, end, C):
        at += C * 8
        following = (piece + C) < end
        next_loaded = tl.load(at, mask=following[:, None], other=0.0, eviction_policy="evict_first")
        weight = loaded.to(tl.float32)
        added: tl.tuple = ()
        for index in tl.static_range(ROWS):
            added += (plain_token(totals[index], weight, values, tokens[index], eighths, piece,
                                  inside, T),)  # fmt: skip
        totals = added
        loaded = next_loaded
        piece += C
        inside = following
    store_totals(outputs, totals, 1.0, n, rows, N, ROWS)
