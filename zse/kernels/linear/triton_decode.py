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

from zse.kernels.linear.triton_parts import (
    dot4_signed,
    dot4_unsigned,
    high_half,
    interleave,
    low_half,
    nf4_bytes,
    opaque,
    split_of_pieces,
    store_token,
    tile_rows,
    token_of,
)

NF4_STEP = tl.constexpr(1 / 112.03021780975463)


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
def int4_token(total, low, high, pair, codes, scales, sums, m, blocks, piece, inside,
               GROUP: tl.constexpr, T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Add the products of one step with token m to ``total`` [R, T, C]."""
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
def nf4_token(total, front, back, absmax, codes, scales, m, blocks, piece, inside,
              GROUP: tl.constexpr, T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Add the products of one step with token m to ``total`` [R, T, C]."""
    x_low, x_high = four_bit_inputs(codes, m, blocks, piece, inside, GROUP, T)
    x_front, x_back = interleave(x_low, x_high, PLAIN)
    scale = number_of_piece(scales, m * blocks + piece // 4, inside, T) * NF4_STEP
    products = dot4_signed(front, like(x_front, front), tl.zeros_like(front), PLAIN)
    products = dot4_signed(back, like(x_back, front), products, PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * (absmax.to(tl.float32) * scale)


@triton.jit
def int8_token(total, words, codes, scales, m, blocks, piece, inside,
               T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Add the products of one step with token m to ``total`` [R, T, C]."""
    x = words_of_piece(codes, m * blocks * 32 + piece * 4, inside, T)
    scale = number_of_piece(scales, m * blocks + piece // 8, inside, T)
    products = dot4_signed(words, like(x, words), tl.zeros_like(words), PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * scale


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
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    per_group: tl.constexpr = GROUP // 32
    begin, end = split_of_pieces(blocks * 4, C)
    n = tile_rows(R, T)
    row = tl.minimum(n, N - 1)  # rows past the end repeat the last one and are not stored
    piece = begin + tl.arange(0, C)
    inside = piece < end
    lane = tl.arange(0, 4)
    at = weights + row[:, :, None, None] * (blocks * 16) + piece[:, None] * 4 + lane
    pair_at = scale_zeros + row[:, :, None] * (blocks * (4 // per_group))
    pair_at += opaque(piece // per_group, PLAIN)
    words = tl.load(at, mask=inside[:, None], eviction_policy="evict_first")
    pair = tl.load(pair_at, mask=inside, other=0)
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
        at += C * 4
        pair_at += C // per_group
        following = (piece + C) < end
        next_words = tl.load(at, mask=following[:, None], eviction_policy="evict_first")
        next_pair = tl.load(pair_at, mask=following, other=0)
        low = words & 0x0F0F0F0F
        high = (words >> 4) & 0x0F0F0F0F
        total0 = int4_token(total0, low, high, pair, codes, scales, sums, m0, blocks, piece, inside,
                            GROUP, T, PLAIN)  # fmt: skip
        if ROWS > 1:
            total1 = int4_token(total1, low, high, pair, codes, scales, sums, m1, blocks, piece,
                                inside, GROUP, T, PLAIN)  # fmt: skip
        if ROWS > 2:
            total2 = int4_token(total2, low, high, pair, codes, scales, sums, m2, blocks, piece,
                                inside, GROUP, T, PLAIN)  # fmt: skip
            total3 = int4_token(total3, low, high, pair, codes, scales, sums, m3, blocks, piece,
                                inside, GROUP, T, PLAIN)  # fmt: skip
        words = next_words
        pair = next_pair
        piece += C
        inside = following
    store_token(outputs, total0, n, 0, rows, N, ROWS)
    if ROWS > 1:
        store_token(outputs, total1, n, 1, rows, N, ROWS)
    if ROWS > 2:
        store_token(outputs, total2, n, 2, rows, N, ROWS)
        store_token(outputs, total3, n, 3, rows, N, ROWS)


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
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    per_group: tl.constexpr = GROUP // 32
    begin, end = split_of_pieces(blocks * 4, C)
    n = tile_rows(R, T)
    row = tl.minimum(n, N - 1)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    lane = tl.arange(0, 4)
    at = weights + row[:, :, None, None] * (blocks * 16) + piece[:, None] * 4 + lane
    absmax_at = absmaxes + row[:, :, None] * (blocks * (4 // per_group))
    absmax_at += opaque(piece // per_group, PLAIN)
    words = tl.load(at, mask=inside[:, None], eviction_policy="evict_first")
    absmax = tl.load(absmax_at, mask=inside, other=0.0)
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
        at += C * 4
        absmax_at += C // per_group
        following = (piece + C) < end
        next_words = tl.load(at, mask=following[:, None], eviction_policy="evict_first")
        next_absmax = tl.load(absmax_at, mask=following, other=0.0)
        front, back = nf4_bytes(words, PLAIN)
        total0 = nf4_token(total0, front, back, absmax, codes, scales, m0, blocks, piece, inside,
                           GROUP, T, PLAIN)  # fmt: skip
        if ROWS > 1:
            total1 = nf4_token(total1, front, back, absmax, codes, scales, m1, blocks, piece,
                               inside, GROUP, T, PLAIN)  # fmt: skip
        if ROWS > 2:
            total2 = nf4_token(total2, front, back, absmax, codes, scales, m2, blocks, piece,
                               inside, GROUP, T, PLAIN)  # fmt: skip
            total3 = nf4_token(total3, front, back, absmax, codes, scales, m3, blocks, piece,
                               inside, GROUP, T, PLAIN)  # fmt: skip
        words = next_words
        absmax = next_absmax
        piece += C
        inside = following
    store_token(outputs, total0, n, 0, rows, N, ROWS)
    if ROWS > 1:
        store_token(outputs, total1, n, 1, rows, N, ROWS)
    if ROWS > 2:
        store_token(outputs, total2, n, 2, rows, N, ROWS)
        store_token(outputs, total3, n, 3, rows, N, ROWS)


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
    n = tile_rows(R, T)
    row = tl.minimum(n, N - 1)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    lane = tl.arange(0, 4)
    at = weights + row[:, :, None, None] * (blocks * 32) + piece[:, None] * 4 + lane
    words = tl.load(at, mask=inside[:, None], eviction_policy="evict_first")
    row_scale = tl.load(row_scales + row)[:, :, None]
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
        at += C * 4
        following = (piece + C) < end
        next_words = tl.load(at, mask=following[:, None], eviction_policy="evict_first")
        total0 = int8_token(total0, words, codes, scales, m0, blocks, piece, inside, T, PLAIN)
        if ROWS > 1:
            total1 = int8_token(total1, words, codes, scales, m1, blocks, piece, inside, T, PLAIN)
        if ROWS > 2:
            total2 = int8_token(total2, words, codes, scales, m2, blocks, piece, inside, T, PLAIN)
            total3 = int8_token(total3, words, codes, scales, m3, blocks, piece, inside, T, PLAIN)
        words = next_words
        piece += C
        inside = following
    store_token(outputs, total0 * row_scale, n, 0, rows, N, ROWS)
    if ROWS > 1:
        store_token(outputs, total1 * row_scale, n, 1, rows, N, ROWS)
    if ROWS > 2:
        store_token(outputs, total2 * row_scale, n, 2, rows, N, ROWS)
        store_token(outputs, total3 * row_scale, n, 3, rows, N, ROWS)
