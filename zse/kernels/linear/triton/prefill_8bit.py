"""A matrix times many tokens by products of 8-bit numbers: twice as many a second as of 16 bits.

Scales inside the loop over the columns would cost more than the bytes save, so a row of the matrix
has one, and a token has one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.prefill import grouped_tile, in_elements
from zse.kernels.triton.parts import wait_for_inputs


@triton.jit
def scaled(total, token_scale, row_scale):
    """Return a tile of sums as float32 [BM, BN], by the scales of its tokens and rows."""
    return total.to(tl.float32) * token_scale[:, None] * row_scale[None, :]


@triton.jit
def matmul_8bit(values, token_scales, weights, row_scales, outputs, tokens, rows, steps, stride,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUPED: tl.constexpr,
                STAGES: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Write [tokens, rows] of int8 [tokens, K] times int8 [rows, K], both along K.

    Operands:
        values: int8 [tokens, K].
        token_scales: float32 [tokens].
        weights: int8 [rows, K].
        row_scales: float32 [rows].
        outputs: float32 or bfloat16; row i starts at i * stride.
        tokens: Rows of the left side.
        rows: Rows of the matrix; divided by EVEN_ROWS if EVEN.
        steps: K / BK.
        stride: Columns of the whole output; divided by EVEN_ROWS if EVEN.
    """
    wait_for_inputs(PDL)
    rows = in_elements(rows, EVEN)
    stride = in_elements(stride, EVEN)
    tile_m, tile_n = grouped_tile(tl.program_id(0), tokens, rows, BM, BN, GROUPED)
    m = tile_m * BM + tl.arange(0, BM)
    n = tile_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    token = tl.minimum(m, tokens - 1)
    row = tl.minimum(n, rows - 1)
    x_at = values + token.to(tl.int64)[:, None] * (steps * BK) + k[None, :]
    w_at = weights + row.to(tl.int64)[:, None] * (steps * BK) + k[None, :]
    total = tl.zeros((BM, BN), tl.int32)
    for _ in tl.range(0, steps, num_stages=STAGES):
        total = tl.dot(tl.load(x_at), tl.trans(tl.load(w_at)), total, out_dtype=tl.int32)
        x_at += BK
        w_at += BK
    value = scaled(total, tl.load(token_scales + token), tl.load(row_scales + row))
    at = outputs + m.to(tl.int64)[:, None] * stride + n[None, :]
    mask = (m < tokens)[:, None] & (n < rows)[None, :]
    tl.store(at, value.to(outputs.dtype.element_ty), mask=mask)


@triton.jit
def matmul_8bit_split(values, token_scales, weights, row_scales, outputs, tokens, rows, steps,
                      stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      GROUPED: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
                      PDL: tl.constexpr):  # fmt: skip
    """As ``matmul_8bit``, of fewer tokens: rows are split, and each part leaves its own sums.

    Program: (tile, split). The result is [splits, tokens, stride].
    """
    wait_for_inputs(PDL)
    rows = in_elements(rows, EVEN)
    stride = in_elements(stride, EVEN)
    columns = steps * BK
    split, splits = tl.program_id(1), tl.num_programs(1)
    tile_m, tile_n = grouped_tile(tl.program_id(0), tokens, rows, BM, BN, GROUPED)
    x_tiles = tl.make_tensor_descriptor(values, [tokens, columns], [columns, 1], [BM, BK])
    w_tiles = tl.make_tensor_descriptor(weights, [rows, columns], [columns, 1], [BN, BK])
    total = tl.zeros((BM, BN), tl.int32)
    for step in tl.range(steps * split // splits, steps * (split + 1) // splits, num_stages=STAGES):
        x = x_tiles.load([tile_m * BM, step * BK])
        weight = w_tiles.load([tile_n * BN, step * BK])
        total = tl.dot(x, tl.trans(weight), total, out_dtype=tl.int32)
    m = tile_m * BM + tl.arange(0, BM)
    n = tile_n * BN + tl.arange(0, BN)
    token = tl.minimum(m, tokens - 1)
    row = tl.minimum(n, rows - 1)
    value = scaled(total, tl.load(token_scales + token), tl.load(row_scales + row))
    first = split.to(tl.int64) * tokens * stride
    at = outputs + first + m.to(tl.int64)[:, None] * stride + n[None, :]
    mask = (m < tokens)[:, None] & (n < rows)[None, :]
    tl.store(at, value.to(outputs.dtype.element_ty), mask=mask)
