"""Attention of one new token a row over an INT8 cache, for so many rows that bytes are the limit.

A warp takes one block of 32 cached tokens after the other, by itself: no byte goes through shared
memory, and no warp waits for another one before the end. Codes of keys are multiplied as they are.
The query is two digits of eight bits, which are the two halves of what a product of tensor cores
takes: its upper rows are one digit of eight heads, its lower ones the other, so that fifteen bits
of the query cost what eight would. Codes of values become float16, exactly, by what their bits
look like inside a larger number, and are scaled two at a time.

Products of 32 channels are exact, and blocks are added in the order of a warp, then warps in
theirs: a row's bits depend on its own context alone.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from zse.kernels.attention.triton.wide_operands import (
    BLOCK,
    GROUPS,
    HEAD_DIM,
    along,
    ask_keys,
    ask_values,
    columns_back,
    keys_held,
    keys_of,
    lines_of,
    values_of,
)
from zse.kernels.triton.apart import wait_for_inputs

HEADS = gl.constexpr(8)
"""Query heads that share a key-value head, at most."""
LOG2_E = gl.constexpr(1.4426950408889634)
NOTHING = gl.constexpr(-1e30)
DIGIT = gl.constexpr(128)
LARGEST = gl.constexpr(127.0 * 128.0)
"""Of what two digits hold."""
ROUNDING = gl.constexpr(12582912.0)
"""1.5 * 2**23: added and subtracted, it rounds to even."""
ROUNDING_BITS = gl.constexpr(0x4B400000)


@gluon.jit
def query_digits(queries, first_head, group, LEFT: gl.constexpr):
    """Return the digits of a row's queries in four groups of channels, and what a one of them is.

    Channels are in the order in which ``keys_of`` has those of keys.
    """
    warps: gl.constexpr = gl.num_warps()
    all_warps: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [warps, 1, 1], [2, 1, 0])
    rows: gl.constexpr = gl.SliceLayout(0, all_warps)
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, rows))
    k = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, rows))
    channel = (k & 0b1100011) + ((k & 0b1100) << 1) + ((k & 0b10000) >> 2)
    at = queries + ((first_head + head) * HEAD_DIM)[:, None] + channel[None, :]
    mask = (head < group)[:, None] & (k >= 0)[None, :]
    values = gl.load(at, mask=mask, other=0.0).to(gl.float32)
    largest = gl.max(gl.abs(values), 1)
    largest = gl.where(largest > 0.0, largest, 1.0)
    numbers = values * (LARGEST / largest)[:, None] + ROUNDING
    numbers = numbers.to(gl.int32, bitcast=True) - ROUNDING_BITS
    high = (numbers + DIGIT // 2) >> 7
    both = gl.join(high, numbers - high * DIGIT).to(gl.int8)
    both = both.permute((2, 0, 1)).reshape((1, 16, 128))
    both = gl.convert_layout(both, all_warps) + gl.zeros([warps, 1, 1], gl.int8, all_warps)
    both = gl.convert_layout(both, LEFT).reshape((warps, 16, 2, 2, 32)).permute((0, 1, 4, 3, 2))
    first, second = both.split()
    a, b = first.split()
    c, d = second.split()
    digits: gl.tuple = ()
    for part in gl.static_range(GROUPS):
        one = (a, b, c, d)[part]
        digits += (gl.convert_layout(one, LEFT, assert_trivial=True),)
    return digits, largest / LARGEST


@gluon.jit
def score_block(digits, codes, scales, LAYOUT: gl.constexpr, RIGHT: gl.constexpr):
    """Return float32 [W, 8, 32]: digits times the codes of a block, times the codes' scales."""
    warps: gl.constexpr = gl.num_warps()
    nothing = gl.zeros([warps, 16, 32], gl.int32, LAYOUT)
    low_pair, high_pair = scales.reshape((warps, 32, 2, 2)).permute((0, 1, 3, 2)).split()
    s0, s1 = low_pair.split()
    s2, s3 = high_pair.split()
    each: gl.tuple = (s0, s1, s2, s3)
    for group in gl.static_range(GROUPS):
        product = mma_v2(digits[group], keys_of(codes[group], RIGHT), nothing)
        high, low = product.reshape((warps, 2, 8, 32)).permute((0, 2, 3, 1)).split()
        number = (high * DIGIT + low).to(gl.float32)
        scale = gl.convert_layout(
            each[group].to(gl.float32), gl.SliceLayout(1, number.type.layout), assert_trivial=True
        )
        if group == 0:
            total = number * gl.expand_dims(scale, 1)
        else:
            total += number * gl.expand_dims(scale, 1)
    return total


@gluon.jit
def store_heads(values, outputs, scales, sums, row, first_head, group, num_heads):
    """Store heads [8, 128] of a row: int8 with a scale and a sum a head, or bfloat16."""
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    values = gl.convert_layout(values, rows)
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, rows))
    column = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, rows))
    line = row * num_heads + first_head + head
    at = (line * HEAD_DIM)[:, None] + column[None, :]
    mask = (head < group)[:, None] & (column >= 0)[None, :]
    if outputs.dtype.element_ty == gl.int8:
        largest = gl.max(gl.abs(values), 1)
        inverse = 127.0 / gl.where(largest > 0.0, largest, 1.0)  # zeros stay zeros
        codes = (values * inverse[:, None] + ROUNDING) - ROUNDING
        scale = largest / 127.0
        gl.store(outputs + at, codes.to(gl.int8), mask=mask)
        gl.store(scales + line, scale, mask=head < group)
        gl.store(sums + line, scale * gl.sum(codes, 1), mask=head < group)
    else:
        gl.store(outputs + at, values.to(gl.bfloat16), mask=mask)


@gluon.jit
def attention_decode_wide(
    queries, positions, tables, keys, values, key_scales, value_scales,
    outputs, output_scales, output_sums,
    table_stride, num_heads, kv_heads, window, scale,
    PDL: gl.constexpr,
):  # fmt: skip
    """Attend with rotated queries [rows, heads, 128]; their keys are in the cache already.

    Program: (row, kv head). Values and their scales come as words and as bits.
    """
    warps: gl.constexpr = gl.num_warps()
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1, 1], [1, 16, 8])
    digits_layout: gl.constexpr = gl.DotOperandLayout(0, scores_layout, 4)
    keys_layout: gl.constexpr = gl.DotOperandLayout(1, scores_layout, 4)
    values_layout: gl.constexpr = gl.DotOperandLayout(0, scores_layout, 2)
    weights_layout: gl.constexpr = gl.DotOperandLayout(1, scores_layout, 2)
    warps_layout: gl.constexpr = along(0, keys_held(warps))
    wait_for_inputs(PDL)

    row = gl.program_id(0).to(gl.int64)
    kv_head = gl.program_id(1)
    group = num_heads // kv_heads
    first_head = kv_head * group
    end = gl.load(positions + row) + 1
    first_seen = gl.where(window > 0, gl.maximum(end - window, 0), 0)
    before = first_seen // BLOCK  # blocks that a window has left behind, which are not followed
    table = tables + row * table_stride + before
    end -= before * BLOCK
    first_seen -= before * BLOCK
    count = gl.cdiv(end, BLOCK)
    warp = gl.arange(0, warps, layout=warps_layout)

    lines = lines_of(table, 0, count, kv_head, kv_heads, warps_layout)
    following = lines_of(table, 1, count, kv_head, kv_heads, warps_layout)
    rest = end - warp * BLOCK
    codes, code_scales = ask_keys(keys, key_scales, lines, rest > 0)
    stored = ask_values(values, value_scales, lines, rest)
    digits, one = query_digits(
        queries + row * num_heads * HEAD_DIM, first_head, group, digits_layout
    )

    attended = gl.zeros([warps, HEAD_DIM, HEADS], gl.float32, scores_layout)
    scores = score_block(digits, codes, code_scales, scores_layout, keys_layout)
    heads_layout: gl.constexpr = gl.SliceLayout(2, scores.type.layout)
    tokens_layout: gl.constexpr = along(2, scores.type.layout)
    factor = gl.convert_layout(one, gl.SliceLayout(0, heads_layout)) * (scale * LOG2_E)
    factor = gl.expand_dims(factor, 0)
    largest = gl.full([warps, HEADS], NOTHING, gl.float32, heads_layout)
    total = gl.zeros([warps, HEADS], gl.float32, heads_layout)
    own = gl.arange(0, warps, layout=along(0, scores.type.layout))
    place = own[:, None, None] * BLOCK + gl.arange(0, 32, layout=tokens_layout)[None, None, :]
    for number in range(gl.cdiv(count, warps)):
        token = (place + (number * (BLOCK * warps) - first_seen)).to(gl.uint32, bitcast=True)
        seen = token < (end - first_seen).to(gl.uint32)
        # What comes next is asked for where what it takes the place of has been used.
        lines = following
        following = lines_of(table, number + 2, count, kv_head, kv_heads, warps_layout)
        rest = end - ((number + 1) * warps + warp) * BLOCK
        codes, code_scales = ask_keys(keys, key_scales, lines, rest > 0)

        scores = gl.where(seen, scores * gl.expand_dims(factor, 2), NOTHING)
        larger = gl.maximum(largest, gl.max(scores, 2))
        weights = gl.where(seen, gl.exp2(scores - gl.expand_dims(larger, 2)), 0.0)
        fade = gl.exp2(largest - larger)
        largest = larger
        total = total * fade + gl.sum(weights, 2)
        weights = gl.convert_layout(
            weights.to(gl.float16).permute((0, 2, 1)), weights_layout, assert_trivial=True
        )
        fade = gl.convert_layout(fade, gl.SliceLayout(1, scores_layout))
        even, odd, even_scale, odd_scale = stored
        wide = values_of(even, odd, even_scale, odd_scale, values_layout)
        attended = mma_v2(wide, weights, attended * gl.expand_dims(fade, 1))
        stored = ask_values(values, value_scales, lines, rest)
        scores = score_block(digits, codes, code_scales, scores_layout, keys_layout)

    whole = gl.max(largest, 0)
    share = gl.exp2(largest - gl.expand_dims(whole, 0))
    total = gl.sum(total * share, 0)
    share = gl.convert_layout(share / gl.expand_dims(total, 0), gl.SliceLayout(1, scores_layout))
    result = gl.sum(attended * gl.expand_dims(share, 1), 0)
    store_heads(
        columns_back(result), outputs, output_scales, output_sums, row, first_head, group, num_heads
    )
