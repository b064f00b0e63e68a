"""Tokens times the matrices of their experts, whose weights go to the tensor cores unshared.

As ``linear.triton.direct`` does it for one matrix: those rows of int8 activations that chose an
expert are multiplied with it together, so that its weights pass once for each tile of them.
Products of a group are whole numbers, and groups are added in one order: the bits of a row do not
depend on which others share its tile.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra import cuda

from zse.kernels.linear import tables
from zse.kernels.linear.triton.direct import (
    BLOCK,
    WORDS,
    add_block,
    ask_inputs,
    ask_weights,
    bytes_of,
    halves_of,
    joined,
    loaded,
    powers,
)

GROUPS = gl.constexpr(4)
"""Groups of MXFP4 in a block of 128 columns."""
STEP = gl.constexpr(1 / tables.MXFP4_INT8_SCALE)
"""What one step of the int8 values of MXFP4 codes stands for."""
VALUES = gl.constexpr(
    "".join(
        tables.int8_of_bytes(tables.MXFP4_INT8)
        .replace("$2", f"${i + 8}")
        .replace("$1,", f"${i + 4},")
        .replace("$0,", f"${i},")
        for i in range(4)
    )
)


@gluon.constexpr_function
def spread(rows, warps, shared):
    """Return how threads hold words [rows, 16] as products of 32 columns take them: one of four.

    ``shared`` says whether all warps hold the same, as of activations, or each rows of its own.
    """
    own = powers(16, 16 * warps)
    held = [[0, 4], [0, 8]]
    held += [[row, 0] for row in powers(8, rows) if shared or row not in own]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    over = [[0, 0] if shared else [row, 0] for row in own]
    return gl.DistributedLinearLayout(held, lanes, over, [], [rows, 16])


@gluon.jit
def in_order(values):
    """Return [rows, 16] whose columns are turned from byte by byte to word by word."""
    rows: gl.constexpr = values.shape[0]
    return values.reshape((rows, 4, 4)).permute((0, 2, 1)).reshape((rows, 16))


@gluon.jit
def values_of(words, LAYOUT: gl.constexpr):
    """Return int8 [rows, 32] of each of the four groups of MXFP4 in words [rows, 16]."""
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        VALUES, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r", [words],
        dtype=(gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8),
        is_pure=True, pack=4,
    )  # fmt: skip
    return (
        gl.convert_layout(joined(in_order(a), in_order(e)), LAYOUT),
        gl.convert_layout(joined(in_order(b), in_order(f)), LAYOUT),
        gl.convert_layout(joined(in_order(c), in_order(g)), LAYOUT),
        gl.convert_layout(joined(in_order(d), in_order(h)), LAYOUT),
    )


@gluon.jit
def pair_of_groups(words, LAYOUT: gl.constexpr):
    """Return int8 [32, rows] of both groups of activations in words [rows, 16]."""
    a, b, c, d = bytes_of_words(words)
    first = joined(in_order(a), in_order(b)).permute((1, 0))
    second = joined(in_order(c), in_order(d)).permute((1, 0))
    return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT)


@gluon.jit
def bytes_of_words(words):
    """Return the bytes of each of a thread's four words, a tensor each."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7;",
        "=&r,=&r,=&r,=r,r,r,r,r", [words],
        dtype=(gl.int8, gl.int8, gl.int8, gl.int8), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def power_of_two(exponent):
    """Return the scale of a group of MXFP4 as float32."""
    return gl.maximum(exponent << 23, 0x00400000).to(gl.float32, bitcast=True)


@gluon.jit
def ask_groups(weights_at, scales_at, word, pair, words, AHEAD: gl.constexpr):
    """Return the block AHEAD of MXFP4 words and of pairs of scales; zeros behind ``words``."""
    inside = word + AHEAD * WORDS < words
    stored = gl.load(weights_at + AHEAD * WORDS, mask=inside, other=0,
                     eviction_policy="evict_first")  # fmt: skip
    pairs = words // 8
    first = gl.load(scales_at + AHEAD * 2, mask=pair + AHEAD * 2 < pairs, other=0)
    second = gl.load(scales_at + (AHEAD * 2 + 1), mask=pair + (AHEAD * 2 + 1) < pairs, other=0)
    return stored, first.to(gl.int32), second.to(gl.int32)


@gluon.jit
def expert_of_tile(starts, groups, BM: gl.constexpr, EXPERTS: gl.constexpr):
    """Return what ``grouped.tile_of_pairs`` does."""
    warps: gl.constexpr = gl.num_warps()
    line: gl.constexpr = gl.BlockedLayout([max(1, EXPERTS // (32 * warps))], [32], [warps], [0])
    tile = gl.program_id(1)
    index = gl.arange(0, EXPERTS, layout=line)
    exists = index < groups
    before = gl.load(starts + index, mask=exists, other=0) // BM + index
    expert = gl.sum((exists & (before <= tile)).to(gl.int32), 0) - 1
    start = gl.load(starts + expert)
    return expert, start + (tile - expert - start // BM) * BM, gl.load(starts + expert + 1)


@gluon.constexpr_function
def one_warp(pairs, warps):
    """Return how each warp holds a number for each pair, all of them."""
    held = [[bit] for bit in powers(32, pairs)]
    warps = [[0] for _ in powers(1, warps)]
    return gl.DistributedLinearLayout(held, [[1], [2], [4], [8], [16]], warps, [], [pairs])


@gluon.jit
def tile_of_pair(chosen, pairs, token, m, BM: gl.constexpr, PAIRS: gl.constexpr,
                 WARPS: gl.constexpr):  # fmt: skip
    """Return the expert of a pair, and it and the next ones of this expert, where a tile begins.

    Returns:
        The expert; how many pairs the tile has, 0 where none begins with this program's; the pairs
        in the places of ``token`` and of ``m``, of which those behind the last are the first one.
    """
    every: gl.constexpr = one_warp(PAIRS, WARPS)
    index = gl.arange(0, PAIRS, layout=every)
    own = gl.program_id(1)
    expert = gl.load(chosen + own)
    same = (gl.load(chosen + index, mask=index < pairs, other=-1) == expert).to(gl.int32)
    before = gl.sum(gl.where(index < own, same, 0), 0)
    count = gl.minimum(gl.sum(same, 0) - before, BM)
    if before % BM != 0:
        count = 0
    last = own
    token_pair, m_pair = token * 0 + own, m * 0 + own
    for place in gl.static_range(1, BM):
        last = gl.min(gl.where((same != 0) & (index > last), index, PAIRS), 0)
        token_pair = gl.where((token == place) & (place < count), last, token_pair)
        m_pair = gl.where((m == place) & (place < count), last, m_pair)
    return expert, count, token_pair, m_pair


@gluon.jit
def int4_total(codes, x_scales, x_sums, weights, scales, row, n, token, m, blocks,
               BN: gl.constexpr, BM: gl.constexpr, DEPTH: gl.constexpr, SUMS: gl.constexpr,
               HELD: gl.constexpr, TAKEN: gl.constexpr):  # fmt: skip
    """Return float32 [BN, BM]: rows of a matrix of int4 in groups of 128 times tokens.

    Args:
        row: Rows of the matrix as its words are held; ``n`` the same as sums are held.
        token: Rows of the activations as their words are held; ``m`` the same as sums are held.
    """
    left: gl.constexpr = gl.DotOperandLayout(0, SUMS, 4)
    right: gl.constexpr = gl.DotOperandLayout(1, SUMS, 4)
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, HELD))
    weights_at = weights + (row * (blocks * WORDS))[:, None] + word[None, :]
    scales_at = scales + n * blocks
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, TAKEN))
    codes_at = codes + (token * blocks * BLOCK)[:, None] + word[None, :]
    x_scales_at, x_sums_at = x_scales + m * blocks, x_sums + m * blocks
    slots: gl.tuple = ()
    for depth in gl.static_range(DEPTH):
        slots += (ask_weights(weights_at, scales_at, 0, blocks, depth, "int4"),)
    total = gl.zeros([BN, BM], gl.float32, SUMS)
    nothing = gl.zeros([BN, BM], gl.int32, SUMS)
    for start in range(0, blocks, DEPTH):
        following: gl.tuple = ()
        for depth in gl.static_range(DEPTH):
            low_x, high_x, x_scale, x_sum = ask_inputs(
                codes_at, x_scales_at, x_sums_at, start, blocks, depth
            )
            low_x = gl.convert_layout(bytes_of(low_x).permute((1, 0)), right)
            high_x = gl.convert_layout(bytes_of(high_x).permute((1, 0)), right)
            stored, scale = slots[depth]
            low, high = halves_of(stored, left, "int4")
            following += (ask_weights(weights_at, scales_at, start, blocks, depth + DEPTH, "int4"),)
            product = mma_v2(high, high_x, mma_v2(low, low_x, nothing))
            total = add_block(total, product, scale, x_scale, x_sum, "int4")
        slots = following
        weights_at += DEPTH * WORDS
        codes_at += DEPTH * BLOCK
        x_scales_at += DEPTH
        x_sums_at += DEPTH
        scales_at += DEPTH
    return total


@gluon.jit
def mxfp4_total(codes, x_scales, weights, exponents, row, n, token, m, units,
                BN: gl.constexpr, BM: gl.constexpr, DEPTH: gl.constexpr, SUMS: gl.constexpr,
                HELD: gl.constexpr, TAKEN: gl.constexpr):  # fmt: skip
    """Return float32 [BN, BM]: rows of ``units`` groups of MXFP4 times tokens; see above."""
    left: gl.constexpr = gl.DotOperandLayout(0, SUMS, 4)
    right: gl.constexpr = gl.DotOperandLayout(1, SUMS, 4)
    words = units * 4
    blocks = gl.cdiv(units, GROUPS)
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, HELD))[None, :]
    weights_at = weights + (row * words)[:, None] + word
    pair = n * 0
    scales_at = exponents + n * (units // 2)
    x_word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, TAKEN))[None, :]
    codes_at = codes + (token * (units * 8))[:, None] + x_word
    x_scales_at = x_scales + m * blocks
    slots: gl.tuple = ()
    for depth in gl.static_range(DEPTH):
        slots += (ask_groups(weights_at, scales_at, word, pair, words, depth),)
    total = gl.zeros([BN, BM], gl.float32, SUMS)
    nothing = gl.zeros([BN, BM], gl.int32, SUMS)
    for start in range(0, blocks, DEPTH):
        following: gl.tuple = ()
        for depth in gl.static_range(DEPTH):
            # Behind the end of a row weights are zeros, whatever activations are there.
            ahead = depth * BLOCK
            low_x = gl.load(codes_at + ahead, mask=x_word + ahead < 2 * words, other=0)
            high_x = gl.load(codes_at + (ahead + WORDS), mask=x_word + (ahead + WORDS) < 2 * words,
                             other=0)  # fmt: skip
            x_scale = gl.load(x_scales_at + depth, mask=start + depth < blocks, other=0.0)
            first_x, second_x = pair_of_groups(low_x, right)
            third_x, fourth_x = pair_of_groups(high_x, right)
            stored, near, far = slots[depth]
            first, second, third, fourth = values_of(stored, left)
            following += (ask_groups(weights_at, scales_at, word, pair, words, depth + DEPTH),)
            product = mma_v2(first, first_x, nothing).to(gl.float32)
            block = product * power_of_two(near & 255)[:, None]
            product = mma_v2(second, second_x, nothing).to(gl.float32)
            block += product * power_of_two(near >> 8)[:, None]
            product = mma_v2(third, third_x, nothing).to(gl.float32)
            block += product * power_of_two(far & 255)[:, None]
            product = mma_v2(fourth, fourth_x, nothing).to(gl.float32)
            block += product * power_of_two(far >> 8)[:, None]
            total += block * x_scale[None, :]
        slots = following
        word += DEPTH * WORDS
        pair += DEPTH * 2
        x_word += DEPTH * BLOCK
        weights_at += DEPTH * WORDS
        scales_at += DEPTH * 2
        codes_at += DEPTH * BLOCK
        x_scales_at += DEPTH
    return total * STEP


@gluon.jit
def tile_of(order, starts, pairs, groups, token, place, BM: gl.constexpr, EXPERTS: gl.constexpr,
            PAIRS: gl.constexpr):  # fmt: skip
    """Return this program's expert and its pairs; see ``tile_of_pair``."""
    if PAIRS:
        expert, count, token_pair, pair = tile_of_pair(order, pairs, token, place, BM, PAIRS,
                                                       gl.num_warps())  # fmt: skip
    else:
        expert, first, end = expert_of_tile(starts, groups, BM, EXPERTS)
        count = gl.minimum(end - first, BM)
        token_pair, pair = token, place
        if count > 0:
            token_pair = gl.load(order + (first + gl.minimum(token, count - 1)))
            pair = gl.load(order + (first + gl.minimum(place, count - 1)))
    return expert, count, token_pair, pair


@gluon.jit
def expert_total(codes, x_scales, x_sums, weights, weight_scales, shared_weights, shared_scales,
                 first_row, is_shared, units, row, n, token, m,
                 SCHEME: gl.constexpr, BN: gl.constexpr, BM: gl.constexpr, DEPTH: gl.constexpr,
                 SUMS: gl.constexpr, HELD: gl.constexpr, TAKEN: gl.constexpr):  # fmt: skip
    """Return float32 [BN, BM]: rows of the matrix of an expert times tokens; see above."""
    if SCHEME == "int4":
        matrix = weights + gl.where(is_shared, shared_weights, first_row * (units * WORDS))
        scales = weight_scales + gl.where(is_shared, shared_scales, first_row * units)
        total = int4_total(codes, x_scales, x_sums, matrix, scales, row, n, token, m, units,
                           BN, BM, DEPTH, SUMS, HELD, TAKEN)  # fmt: skip
    else:
        matrix = weights + gl.where(is_shared, shared_weights, first_row * (units * 4))
        scales = weight_scales + gl.where(is_shared, shared_scales, first_row * (units // 2))
        total = mxfp4_total(codes, x_scales, matrix, scales, row, n, token, m, units,
                            BN, BM, DEPTH, SUMS, HELD, TAKEN)  # fmt: skip
    return total


@gluon.jit
def direct_products(codes, x_scales, x_sums, weights, weight_scales, bias, order, starts,
                    expert_weights, outputs, shared_weights, shared_scales, N, units, rows, slots,
                    num_experts, groups, has_bias, is_down,
                    SCHEME: gl.constexpr, BN: gl.constexpr, BM: gl.constexpr,
                    DEPTH: gl.constexpr, EXPERTS: gl.constexpr, PAIRS: gl.constexpr,
                    PDL: gl.constexpr):  # fmt: skip
    """Multiply int8 activations with the matrices [N, K] of their experts.

    Program: (tile of rows of the matrix, tile of pairs of one expert); or (tile of rows of the
    matrix, pair), where there are up to PAIRS, not sorted. What goes up is float32
    [rows * slots, N], a line for each pair; what goes down is products times the pair's weight, as
    summands of each token: float32 [slots, rows, N].

    Operands:
        codes: int32 words of int8 [rows, K], or [rows * slots, K] if ``is_down``.
        x_scales, x_sums: Of groups of 128 activations, float32.
        weights: int32 words of the stacked matrices.
        weight_scales: int32 pairs [experts, N, K / 128] of int4; uint16 pairs of exponents
            [experts, N, K / 64] of MXFP4.
        bias: float32 [experts, N].
        order, starts, groups: See ``grouped.grouped_products``; where pairs are not sorted,
            ``order`` is the expert of each pair.
        expert_weights: float32 [rows, slots].
        shared_weights, shared_scales: Elements from the stacked matrices to the shared expert's.
        units: K / 128 of int4, K / 32 of MXFP4.
    """
    warps: gl.constexpr = gl.num_warps()
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    held: gl.constexpr = loaded(BN, warps, False) if SCHEME == "int4" else spread(BN, warps, False)
    taken: gl.constexpr = loaded(BM, warps, True) if SCHEME == "int4" else spread(BM, warps, True)
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    token = gl.arange(0, BM, layout=gl.SliceLayout(1, taken))
    place = gl.arange(0, BM, layout=gl.SliceLayout(0, sums))
    expert, count, token_pair, pair = tile_of(order, starts, rows * slots, groups, token, place,
                                              BM, EXPERTS, PAIRS)  # fmt: skip
    if count > 0:
        token = gl.where(is_down != 0, token_pair, token_pair // slots)
        m = gl.where(is_down != 0, pair, pair // slots)
        at = gl.program_id(0) * BN
        row = gl.minimum(at + gl.arange(0, BN, layout=gl.SliceLayout(1, held)), N - 1)
        n = at + gl.arange(0, BN, layout=gl.SliceLayout(1, sums))
        inside = gl.minimum(n, N - 1)
        first_row = expert.to(gl.int64) * N
        is_shared = expert == num_experts
        total = expert_total(codes, x_scales, x_sums, weights, weight_scales, shared_weights,
                             shared_scales, first_row, is_shared, units, row, inside, token, m,
                             SCHEME, BN, BM, DEPTH, sums, held, taken)  # fmt: skip
        wanted = gl.where(is_shared, 0, has_bias)
        total += gl.load(bias + first_row + inside, mask=n * 0 + wanted > 0, other=0.0)[:, None]
        line = pair
        if is_down != 0:
            total *= gl.load(expert_weights + pair)[None, :]
            line = pair % slots * rows + pair // slots
        out = outputs + line.to(gl.int64)[None, :] * N + n[:, None]
        gl.store(out, total, mask=(n < N)[:, None] & (place < count)[None, :])
