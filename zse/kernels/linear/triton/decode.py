"""A matrix times one, two or four tokens whose activations are int8: the weights pass once.

A piece is 16 bytes of a row of the matrix, what a thread loads at once. A program takes R * T rows
and one split of their columns; its threads lie T along the rows and C along the pieces of a row,
so T * C is the number of threads, and each has R pieces of as many rows in a step. That keeps the
activations and scales of a piece in the thread that uses them. The pieces of the next step are
requested before those of this one are used. Sums stay in the thread until the end.

Activations lie in their natural order. A four-bit piece holds 32 weights of one group: 16 of the
group's first half in the low nibbles, the 16 of its second half in the high ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import (
    dot4_signed,
    dot4_unsigned,
    interleave,
    opaque,
    split_of_pieces,
    store_totals,
    tile_rows,
    tile_tokens,
    zero_totals,
)
from zse.kernels.linear.triton.unpack import NF4_STEP, nf4_bytes
from zse.kernels.triton.parts import high_half, low_half


@triton.jit
def words_of_piece(codes, word, inside, T: tl.constexpr):
    """Return four words of activations for each thread, int32 [1, T, C, 4]; ``word`` is [C]."""
    same = tl.zeros((1, T, 1, 1), tl.int32)
    at = codes + same + word[None, None, :, None] + tl.arange(0, 4)[None, None, None, :]
    return tl.load(at, mask=inside[None, None, :, None] & (same == 0), other=0)


@triton.jit
def number_of_piece(numbers, index, inside, T: tl.constexpr):
    """Return one number a piece for each thread, float32 [1, T, C]; ``index`` is [C]."""
    same = tl.zeros((1, T, 1), tl.int32)
    at = numbers + same + index[None, None, :]
    return tl.load(at, mask=inside[None, None, :] & (same == 0), other=0.0)


@triton.jit
def like(x, words):
    """Return ``x`` [1, T, C, 4] repeated to the shape of ``words``."""
    repeated, _ = tl.broadcast(x, words)
    return repeated


@triton.jit
def four_bit_inputs(codes, m, blocks, piece, inside, GROUP: tl.constexpr,
                    T: tl.constexpr):  # fmt: skip
    """Return the activations that meet the low and the high nibbles of each thread's piece."""
    per_group: tl.constexpr = GROUP // 32
    word = m * blocks * 32 + piece // per_group * (GROUP // 4) + piece % per_group * 4
    low = words_of_piece(codes, word, inside, T)
    return low, words_of_piece(codes, word + GROUP // 8, inside, T)


@triton.jit
def int4_token(total, weights, pair, inputs, m, blocks, piece, inside,
               GROUP: tl.constexpr, T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales, sums = inputs
    low, high = weights
    x_low, x_high = four_bit_inputs(codes, m, blocks, piece, inside, GROUP, T)
    block = m * blocks + piece // 4
    scale = number_of_piece(scales, block, inside, T)
    if GROUP == 128:  # each of the group's four pieces takes a quarter of its zero
        part = number_of_piece(sums, block, inside, T) * 0.25
    else:
        ones = tl.full(x_low.shape, 0x01010101, tl.int32)
        count = dot4_unsigned(ones, x_low, tl.zeros_like(x_low), PLAIN)
        part = tl.sum(dot4_unsigned(ones, x_high, count, PLAIN), 3).to(tl.float32) * scale
    products = dot4_unsigned(low, like(x_low, low), tl.zeros_like(low), PLAIN)
    products = dot4_unsigned(high, like(x_high, low), products, PLAIN)
    product = tl.sum(products, 3).to(tl.float32)
    return total + product * (low_half(pair) * scale) + high_half(pair) * part


@triton.jit
def nf4_token(total, weights, absmax, inputs, m, blocks, piece, inside,
              GROUP: tl.constexpr, T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales = inputs
    front, back = weights
    x_low, x_high = four_bit_inputs(codes, m, blocks, piece, inside, GROUP, T)
    x_front, x_back = interleave(x_low, x_high, PLAIN)
    scale = number_of_piece(scales, m * blocks + piece // 4, inside, T) * NF4_STEP
    products = dot4_signed(front, like(x_front, front), tl.zeros_like(front), PLAIN)
    products = dot4_signed(back, like(x_back, front), products, PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * (absmax.to(tl.float32) * scale)


@triton.jit
def int8_token(total, words, inputs, m, blocks, piece, inside,
               T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales = inputs
    x = words_of_piece(codes, m * blocks * 32 + piece * 4, inside, T)
    scale = number_of_piece(scales, m * blocks + piece // 8, inside, T)
    products = dot4_signed(words, like(x, words), tl.zeros_like(words), PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * scale


@triton.jit
def four_bit_step(totals, words, scale, inputs, tokens, blocks, piece, inside,
                  SCHEME: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                  T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``totals`` plus the products of one step with each token."""
    added: tl.tuple = ()
    if SCHEME == "int4":
        nibbles = (words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F)
        for index in tl.static_range(ROWS):
            added += (int4_token(totals[index], nibbles, scale, inputs, tokens[index], blocks,
                                 piece, inside, GROUP, T, PLAIN),)  # fmt: skip
    else:
        values = nf4_bytes(words, PLAIN)
        for index in tl.static_range(ROWS):
            added += (nf4_token(totals[index], values, scale, inputs, tokens[index], blocks,
                                piece, inside, GROUP, T, PLAIN),)  # fmt: skip
    return added


@triton.jit
def gemv_four_bit(inputs, weights, weight_scales, outputs, rows, N, blocks,
                  SCHEME: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                  R: tl.constexpr, T: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr,
                  PLAIN: tl.constexpr):  # fmt: skip
    """Write float32 [splits, rows, N]: ``gemv_int4`` and ``gemv_nf4`` differ in the scales.

    ``inputs`` are codes and scales of the activations, for int4 their sums too.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    per_group: tl.constexpr = GROUP // 32
    begin, end = split_of_pieces(blocks * 4, C)
    n, row = tile_rows(N, R, T)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    at = weights + row[:, :, None, None] * (blocks * 16) + piece[:, None] * 4 + tl.arange(0, 4)
    scale_at = weight_scales + row[:, :, None] * (blocks * (4 // per_group))
    scale_at += opaque(piece // per_group, PLAIN)
    words = tl.load(at, mask=inside[:, None], eviction_policy="evict_first")
    scale = tl.load(scale_at, mask=inside, other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tokens = tile_tokens(rows, ROWS)
    totals = zero_totals(ROWS, R, T, C)
    for _ in range(begin, end, C):
        at += C * 4
        scale_at += C // per_group
        following = (piece + C) < end
        next_words = tl.load(at, mask=following[:, None], eviction_policy="evict_first")
        next_scale = tl.load(scale_at, mask=following, other=0)
        totals = four_bit_step(totals, words, scale, inputs, tokens, blocks, piece, inside,
                               SCHEME, GROUP, ROWS, T, PLAIN)  # fmt: skip
        words = next_words
        scale = next_scale
        piece += C
        inside = following
    store_totals(outputs, totals, 1.0, n, rows, N, ROWS)


@triton.jit
def gemv_int4(codes, scales, sums, weights, scale_zeros, outputs, rows, N, blocks,
              GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
              C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write float32 [splits, rows, N]: int8 activations [rows, K] times int4 weights [N, K].

    Operands:
        codes: int32 words of int8 [rows, K].
        scales: float32 [rows, K / 128].
        sums: float32 [rows, K / 128].
        weights: int32 words of packed weights [N, K / 8].
        scale_zeros: int32 [N, K / GROUP].
        outputs: float32 [splits, rows, N].
        rows: Tokens; a program takes ROWS of them.
        N: Rows of the matrix.
        blocks: K / 128.
    """
    gemv_four_bit((codes, scales, sums), weights, scale_zeros, outputs, rows, N, blocks,
                  "int4", GROUP, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_nf4(codes, scales, weights, absmaxes, outputs, rows, N, blocks,
             GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
             C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for nf4 weights, whose values are rounded to int8 (``NF4_STEP`` apart).

    Operands:
        codes: int32 words of int8 [rows, K].
        scales: float32 [rows, K / 128].
        weights: int32 words of packed weights [N, K / 8].
        absmaxes: float16 [N, K / GROUP].
        outputs: float32 [splits, rows, N].
        rows: Tokens; a program takes ROWS of them.
        N: Rows of the matrix.
        blocks: K / 128.
    """
    gemv_four_bit((codes, scales), weights, absmaxes, outputs, rows, N, blocks,
                  "nf4", GROUP, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_int8(codes, scales, weights, row_scales, outputs, rows, N, blocks,
              ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
              PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for int8 weights; a piece is 16 of them.

    Operands:
        codes: int32 words of int8 [rows, K].
        scales: float32 [rows, K / 128].
        weights: int32 words of int8 [N, K].
        row_scales: float32 [N].
        outputs: float32 [splits, rows, N].
        rows: Tokens; a program takes ROWS of them.
        N: Rows of the matrix.
        blocks: K / 128.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin, end = split_of_pieces(blocks * 8, C)
    n, row = tile_rows(N, R, T)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    at = weights + row[:, :, None, None] * (blocks * 32) + piece[:, None] * 4 + tl.arange(0, 4)
    words = tl.load(at, mask=inside[:, None], eviction_policy="evict_first")
    row_scale = tl.load(row_scales + row)[:, :, None]
    if PDL:
        tl.extra.cuda.gdc_wait()
    tokens = tile_tokens(rows, ROWS)
    totals = zero_totals(ROWS, R, T, C)
    for _ in range(begin, end, C):
        at += C * 4
        following = (piece + C) < end
        next_words = tl.load(at, mask=following[:, None], eviction_policy="evict_first")
        added: tl.tuple = ()
        for index in tl.static_range(ROWS):
            added += (int8_token(totals[index], words, (codes, scales), tokens[index], blocks,
                                 piece, inside, T, PLAIN),)  # fmt: skip
        totals = added
        words = next_words
        piece += C
        inside = following
    store_totals(outputs, totals, row_scale, n, rows, N, ROWS)
