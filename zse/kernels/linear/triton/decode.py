"""A matrix times one, two or four tokens: the weights pass once.

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
    dot4,
    interleave,
    opaque,
    split_of_pieces,
    store_totals,
    tile_rows,
    tile_tokens,
    zero_totals,
)
from zse.kernels.linear.triton.unpack import (
    MXFP4_STEP,
    NF4_STEP,
    pair_bytes,
    pair_of_scales,
    table_bytes,
    table_scale,
    words_of_few_bits,
)
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
        count = dot4(ones, x_low, tl.zeros_like(x_low), False, PLAIN)
        part = tl.sum(dot4(ones, x_high, count, False, PLAIN), 3).to(tl.float32) * scale
    products = dot4(low, like(x_low, low), tl.zeros_like(low), False, PLAIN)
    products = dot4(high, like(x_high, low), products, False, PLAIN)
    product = tl.sum(products, 3).to(tl.float32)
    return total + product * (low_half(pair) * scale) + high_half(pair) * part


@triton.jit
def table_token(total, weights, weight_scale, inputs, m, blocks, piece, inside,
                SCHEME: tl.constexpr, GROUP: tl.constexpr, T: tl.constexpr,
                PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales = inputs
    front, back = weights
    x_low, x_high = four_bit_inputs(codes, m, blocks, piece, inside, GROUP, T)
    x_front, x_back = interleave(x_low, x_high, PLAIN)
    step: tl.constexpr = MXFP4_STEP if SCHEME == "mxfp4" else (1.0 if SCHEME == "nl4" else NF4_STEP)
    scale = number_of_piece(scales, m * blocks + piece // 4, inside, T) * step
    products = dot4(front, like(x_front, front), tl.zeros_like(front), True, PLAIN)
    products = dot4(back, like(x_back, front), products, True, PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * (table_scale(weight_scale, SCHEME) * scale)


@triton.jit
def pairs_token(total, weights, pair, inputs, m, blocks, piece, inside,
                T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales = inputs
    low, high = weights
    x_low, x_high = four_bit_inputs(codes, m, blocks, piece, inside, 32, T)
    scale = number_of_piece(scales, m * blocks + piece // 4, inside, T)
    low_scale, high_scale = pair_of_scales(pair)
    products = dot4(low, like(x_low, low), tl.zeros_like(low), True, PLAIN)
    product = tl.sum(products, 3).to(tl.float32) * low_scale
    products = dot4(high, like(x_high, high), tl.zeros_like(high), True, PLAIN)
    product += tl.sum(products, 3).to(tl.float32) * high_scale
    return total + product * scale


@triton.jit
def int8_token(total, words, inputs, m, blocks, piece, inside,
               T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    codes, scales = inputs
    x = words_of_piece(codes, m * blocks * 32 + piece * 4, inside, T)
    scale = number_of_piece(scales, m * blocks + piece // 8, inside, T)
    products = dot4(words, like(x, words), tl.zeros_like(words), True, PLAIN)
    return total + tl.sum(products, 3).to(tl.float32) * scale


@triton.jit
def plain_token(total, weight, inputs, m, eighths, piece, inside, T: tl.constexpr):
    """Return ``total`` [R, T, C] plus the products of one step with token m, in 16 bits."""
    (values,) = inputs
    same = tl.zeros((1, T, 1, 1), tl.int32)
    at = values + m * eighths * 8 + same + piece[None, None, :, None] * 8
    at += tl.arange(0, 8)[None, None, None, :]
    x = tl.load(at, mask=inside[None, None, :, None] & (same == 0), other=0.0)
    return total + tl.sum(weight * x.to(tl.float32), 3)


@triton.jit
def operands(loaded, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return what each token of a step is multiplied with, made once of the loaded pieces."""
    if SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2":
        if SCHEME == "int3":
            pairs, thirds = loaded
            loaded = words_of_few_bits(pairs, thirds, SCHEME)
        elif SCHEME == "int2":
            loaded = words_of_few_bits(loaded, None, SCHEME)
        made = (loaded & 0x0F0F0F0F, (loaded >> 4) & 0x0F0F0F0F)
    elif SCHEME == "int8":
        made = loaded
    elif SCHEME == "16-bit":
        made = loaded.to(tl.float32)
    elif SCHEME == "nl4_pairs":
        made = pair_bytes(loaded, PLAIN)
    else:
        made = table_bytes(loaded, SCHEME, PLAIN)
    return made


@triton.jit
def load_pieces(at, third_at, inside, SCHEME: tl.constexpr):
    """Return the words of each thread's pieces, [R, T, C, each]; zeros where none is ``inside``.

    Of int3 a tuple: the words with two bits of each code, and those with the third [R, T, C].
    """
    nothing: tl.constexpr = 0.0 if SCHEME == "16-bit" else None
    other: tl.constexpr = 0 if SCHEME == "int3" or SCHEME == "int2" else nothing
    loaded = tl.load(at, mask=inside[:, None], other=other, eviction_policy="evict_first")
    if SCHEME == "int3":
        thirds = tl.load(third_at, mask=inside, other=0, eviction_policy="evict_first")
        pieces = (loaded, thirds)
    else:
        pieces = loaded
    return pieces


@triton.jit
def add_token(total, weights, scale, inputs, m, units, piece, inside, SCHEME: tl.constexpr,
              GROUP: tl.constexpr, T: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return ``total`` [R, T, C] plus the products of one step with token m."""
    if SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2":
        total = int4_token(total, weights, scale, inputs, m, units, piece, inside, GROUP, T, PLAIN)
    elif SCHEME == "int8":
        total = int8_token(total, weights, inputs, m, units, piece, inside, T, PLAIN)
    elif SCHEME == "16-bit":
        total = plain_token(total, weights, inputs, m, units, piece, inside, T)
    elif SCHEME == "nl4_pairs":
        total = pairs_token(total, weights, scale, inputs, m, units, piece, inside, T, PLAIN)
    else:
        total = table_token(total, weights, scale, inputs, m, units, piece, inside, SCHEME, GROUP,
                            T, PLAIN)  # fmt: skip
    return total


@triton.jit
def gemv_totals(inputs, tokens, weights, weight_scales, row, begin, end, units,
                SCHEME: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
                ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
                PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return each token's sums, a tuple of float32 [R, T, C], and the factor of their sum over C.

    Args:
        inputs: As for ``gemv``, as are those not named here.
        tokens: Numbers of the tokens, a tuple of ROWS.
        row: Rows of the matrix, int32 [R, T].
        begin: First piece of a row.
        end: Piece behind the last one.
        PDL: Whether to wait for the kernel before this one, once the first weights are on their
            way.
    """
    whole: tl.constexpr = 8 if SCHEME == "16-bit" else 4
    few: tl.constexpr = SCHEME == "int3" or SCHEME == "int2"
    read: tl.constexpr = 2 if few else whole
    each: tl.constexpr = 3 if SCHEME == "int3" else read
    per_group: tl.constexpr = GROUP // 32
    if SCHEME == "16-bit":
        row = row.to(tl.int64)
    piece = begin + tl.arange(0, C)
    inside = piece < end
    at = weights + row[:, :, None, None] * (units * (PIECES * each)) + piece[:, None] * each
    at += tl.arange(0, read)
    third_at = None
    if SCHEME == "int3":  # behind the words that have two bits of each code
        third_at = weights + row[:, :, None] * (units * (PIECES * each)) + read
        third_at += opaque(piece * each, PLAIN)
    if GROUP:
        scale_at = weight_scales + row[:, :, None] * (units * (PIECES // per_group))
        scale_at += opaque(piece // per_group, PLAIN)
    loaded = load_pieces(at, third_at, inside, SCHEME)
    scale = 1.0
    if GROUP:
        scale = tl.load(scale_at, mask=inside, other=0)
    elif SCHEME == "int8":
        scale = tl.load(weight_scales + row)[:, :, None]
    if PDL:
        tl.extra.cuda.gdc_wait()
    totals = zero_totals(ROWS, R, T, C)
    for _ in range(begin, end, C):
        at += C * each
        following = (piece + C) < end
        if GROUP:
            scale_at += C // per_group
        if SCHEME == "int3":
            third_at += C * each
        next_loaded = load_pieces(at, third_at, following, SCHEME)
        if GROUP:
            next_scale = tl.load(scale_at, mask=following, other=0)
        multiplied = operands(loaded, SCHEME, PLAIN)
        added: tl.tuple = ()
        for index in tl.static_range(ROWS):
            added += (add_token(totals[index], multiplied, scale, inputs, tokens[index], units,
                                piece, inside, SCHEME, GROUP, T, PLAIN),)  # fmt: skip
        totals = added
        loaded = next_loaded
        if GROUP:
            scale = next_scale
        piece += C
        inside = following
    return totals, 1.0 if GROUP else scale


@triton.jit
def gemv(inputs, weights, weight_scales, outputs, rows, N, units, SCHEME: tl.constexpr,
         GROUP: tl.constexpr, PIECES: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr,
         T: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write float32 [splits, rows, N]: what the kernels below have in common.

    Args:
        inputs: Addresses of the activations, of their scales and of their sums, as far as there
            are any.
        weights: Address of words or of 16-bit numbers.
        weight_scales: One for each GROUP of columns, or one for each row (int8); else not read.
        outputs: Address of the result.
        rows: Tokens.
        N: Rows of the matrix.
        units: Units of a row of the matrix: blocks of 128 columns, or eighths of 16-bit numbers.
        SCHEME: int4, int3, int2, nf4, nl4, nl4_pairs, mxfp4, int8 or 16 bits.
        GROUP: Columns that share a scale; 0 for none.
        PIECES: Pieces of a unit.
        ROWS: Tokens of a program.
        R: Rows of the matrix that a thread works on.
        T: Threads along the rows.
        C: Threads along the columns.
        PDL: Whether kernels overlap.
        PLAIN: Whether plain arithmetic stands in for inline assembly.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin, end = split_of_pieces(units * PIECES, C)
    n, row = tile_rows(N, R, T)
    totals, factor = gemv_totals(inputs, tile_tokens(rows, ROWS), weights, weight_scales, row,
                                 begin, end, units, SCHEME, GROUP, PIECES, ROWS, R, T, C, PDL,
                                 PLAIN)  # fmt: skip
    store_totals(outputs, totals, factor, n, rows, N, ROWS)


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
    gemv((codes, scales, sums), weights, scale_zeros, outputs, rows, N, blocks,
         "int4", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_int3(codes, scales, sums, weights, scale_zeros, outputs, rows, N, blocks,
              GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
              C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for int3 weights; a piece of 32 columns is three words."""
    gemv((codes, scales, sums), weights, scale_zeros, outputs, rows, N, blocks,
         "int3", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_int2(codes, scales, sums, weights, scale_zeros, outputs, rows, N, blocks,
              GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
              C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for int2 weights; a piece of 32 columns is two words."""
    gemv((codes, scales, sums), weights, scale_zeros, outputs, rows, N, blocks,
         "int2", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_nf4(codes, scales, weights, absmaxes, outputs, rows, N, blocks,
             GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
             C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for nf4 weights, whose values are rounded to int8 (``NF4_STEP`` apart).

    ``absmaxes`` are float16 [N, K / GROUP].
    """
    gemv((codes, scales), weights, absmaxes, outputs, rows, N, blocks,
         "nf4", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_nl4(codes, scales, weights, signed_scales, outputs, rows, N, blocks,
             GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
             C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for nl4 weights in groups of 32, whose values int8 holds exactly.

    ``signed_scales`` are uint8 [N, K / 32]; GROUP is 32.
    """
    gemv((codes, scales), weights, signed_scales, outputs, rows, N, blocks,
         "nl4", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_nl4_pairs(codes, scales, weights, scale_pairs, outputs, rows, N, blocks,
                   GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
                   C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_nl4`` for groups of 16; ``scale_pairs`` are uint16 [N, K / 32], two scales each."""
    gemv((codes, scales), weights, scale_pairs, outputs, rows, N, blocks,
         "nl4_pairs", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_mxfp4(codes, scales, weights, exponents, outputs, rows, N, blocks,
               GROUP: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
               C: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for mxfp4 weights, whose values int8 holds exactly.

    ``exponents`` are uint8 [N, K / 32]; GROUP is 32.
    """
    gemv((codes, scales), weights, exponents, outputs, rows, N, blocks,
         "mxfp4", GROUP, 4, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_int8(codes, scales, weights, row_scales, outputs, rows, N, blocks,
              ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
              PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for int8 weights; a piece is 16 of them.

    ``weights`` are int32 words of int8 [N, K], ``row_scales`` float32 [N].
    """
    gemv((codes, scales), weights, row_scales, outputs, rows, N, blocks,
         "int8", 0, 8, ROWS, R, T, C, PDL, PLAIN)  # fmt: skip


@triton.jit
def gemv_16(values, weights, outputs, rows, N, eighths,
            ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr,
            PDL: tl.constexpr):  # fmt: skip
    """As ``gemv_int4`` for 16-bit weights and activations; a piece is 8 weights.

    ``values`` are bfloat16 [rows, K], ``weights`` bfloat16 or float16 [N, K]; ``eighths`` is K / 8.
    """
    gemv((values,), weights, weights, outputs, rows, N, eighths,
         "16-bit", 0, 1, ROWS, R, T, C, PDL, False)  # fmt: skip
