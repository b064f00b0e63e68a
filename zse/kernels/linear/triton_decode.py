"""Matrix times a few tokens whose activations are int8: the weights pass once, nothing else counts.

A program takes BN rows of the matrix and one split of its columns. It walks them in steps of
CHUNKS pieces; a piece is 16 bytes of a row, what one thread loads at once, so a thread needs one
scale a piece. The pieces of the next step are requested before those of this one are used. Sums
stay in the thread until the end of the walk.

Activations lie in their natural order. A four-bit piece of group g holds 32 weights: 16 of the
first half of the group in the low nibbles, 16 of the second half in the high ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton_common import dot4_signed, dot4_unsigned, high_half, low_half


@triton.jit
def split_of_pieces(pieces, CHUNKS: tl.constexpr):
    """Return the first and last piece of this program's split; splits differ by one step."""
    steps = tl.cdiv(pieces, CHUNKS)
    splits = tl.num_programs(1)
    split = tl.program_id(1)
    begin = (split * steps) // splits * CHUNKS
    end = tl.minimum(((split + 1) * steps) // splits * CHUNKS, pieces)
    return begin, end


@triton.jit
def int4_row(total, low, high, codes, scales, sums, pair, first, piece, m, blocks, inside,
             GROUP: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Add to ``total`` [BN, C] the products of one step with token m."""
    lane = tl.arange(0, 4)
    half: tl.constexpr = GROUP // 8  # words between the two halves of a group
    at = codes + m * blocks * 32 + first[:, None] + lane[None, :]
    mask = inside[:, None]
    x_low = tl.load(at, mask=mask, other=0)[None, :, :]
    x_high = tl.load(at + half, mask=mask, other=0)[None, :, :]
    block = m * blocks + piece // 4
    scale = tl.load(scales + block, mask=inside, other=0.0)[None, :]
    if GROUP == 128:
        group_sum = tl.load(sums + block, mask=inside, other=0.0)[None, :] * 0.25
    else:
        ones = tl.full(x_low.shape, 0x01010101, tl.int32)
        count = dot4_unsigned(ones, x_high, dot4_unsigned(ones, x_low, tl.zeros_like(x_low), PLAIN), PLAIN)
        group_sum = tl.sum(count, 2).to(tl.float32) * scale
    zero = tl.zeros_like(low)
    x_low, zero = tl.broadcast(x_low, zero)
    x_high, zero = tl.broadcast(x_high, zero)
    products = dot4_unsigned(high, x_high, dot4_unsigned(low, x_low, zero, PLAIN), PLAIN)
    product = tl.sum(products, 2).to(tl.float32)
    return total + product * (low_half(pair) * scale) + high_half(pair) * group_sum


@triton.jit
def gemv_int4(codes, scales, sums, weights, scale_zeros, outputs, N, blocks,
              GROUP: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, CHUNKS: tl.constexpr,
              PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write float32 [splits, ROWS, N]: int8 activations [ROWS, K] times int4 weights [N, K].

    Args:
        codes: int32 words of int8 [ROWS, K].
        scales: float32 [ROWS, K / 128].
        sums: float32 [ROWS, K / 128].
        weights: int32 words of packed weights [N, K / 8].
        scale_zeros: int32 [N, K / GROUP].
        outputs: float32 [splits, ROWS, N].
        N: Rows of the matrix.
        blocks: K / 128.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    per_group: tl.constexpr = GROUP // 32
    pieces = blocks * 4
    begin, end = split_of_pieces(pieces, CHUNKS)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(n, N - 1)  # rows past the end repeat the last one and are not stored
    lane = tl.arange(0, 4)
    piece = begin + tl.arange(0, CHUNKS)
    inside = piece < end
    at = weights + row[:, None, None] * (blocks * 16) + piece[None, :, None] * 4 + lane[None, None, :]
    pair_at = scale_zeros + row[:, None] * (pieces // per_group) + (piece // per_group)[None, :]
    words = tl.load(at, mask=inside[None, :, None], eviction_policy="evict_first")
    pair = tl.load(pair_at, mask=inside[None, :], other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    total0 = tl.zeros((BN, CHUNKS), tl.float32)
    total1 = total0
    total2 = total0
    total3 = total0
    for _ in range(begin, end, CHUNKS):
        at += CHUNKS * 4
        pair_at += CHUNKS // per_group
        following = (piece + CHUNKS) < end
        next_words = tl.load(at, mask=following[None, :, None], eviction_policy="evict_first")
        next_pair = tl.load(pair_at, mask=following[None, :], other=0)
        low = words & 0x0F0F0F0F
        high = (words >> 4) & 0x0F0F0F0F
        first = piece // per_group * (GROUP // 4) + piece % per_group * 4
        total0 = int4_row(total0, low, high, codes, scales, sums, pair, first, piece, 0, blocks, inside, GROUP, PLAIN)
        if ROWS > 1:
            total1 = int4_row(total1, low, high, codes, scales, sums, pair, first, piece, 1, blocks, inside, GROUP, PLAIN)
        if ROWS > 2:
            total2 = int4_row(total2, low, high, codes, scales, sums, pair, first, piece, 2, blocks, inside, GROUP, PLAIN)
            total3 = int4_row(total3, low, high, codes, scales, sums, pair, first, piece, 3, blocks, inside, GROUP, PLAIN)
        words = next_words
        pair = next_pair
        piece += CHUNKS
        inside = following
    out = outputs + tl.program_id(1) * ROWS * N + n
    tl.store(out, tl.sum(total0, 1), mask=n < N)
    if ROWS > 1:
        tl.store(out + N, tl.sum(total1, 1), mask=n < N)
    if ROWS > 2:
        tl.store(out + 2 * N, tl.sum(total2, 1), mask=n < N)
        tl.store(out + 3 * N, tl.sum(total3, 1), mask=n < N)
