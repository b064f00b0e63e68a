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

from zse.kernels import layout
from zse.kernels.triton.apart import wait_for_inputs

BLOCK = gl.constexpr(layout.BLOCK_TOKENS)
CHANNELS = gl.constexpr(layout.SCALE_CHANNELS)
HEAD_DIM = gl.constexpr(128)
GROUPS = gl.constexpr(HEAD_DIM.value // layout.SCALE_CHANNELS)
"""Of channels of a head that share a scale."""
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
WIDEN = gl.constexpr(
    "{ .reg .b32 x, y, m; mov.b32 m, 0xE480E480; "
    + "".join(
        f"prmt.b32 x, ${8 + e}, ${10 + e}, 0x5140; prmt.b32 y, ${8 + e}, ${10 + e}, 0x7362; "
        "xor.b32 x, x, 0x80808080; xor.b32 y, y, 0x80808080; "
        + "".join(
            f"prmt.b32 ${4 * e + i}, {'xxyy'[i]}, 0x64646464, {('0x4140', '0x4342')[i % 2]}; "
            f"add.rn.f16x2 ${4 * e + i}, ${4 * e + i}, m; "
            f"mul.rn.f16x2 ${4 * e + i}, ${4 * e + i}, ${12 + e}; "
            for i in range(4)
        )
        for e in range(2)
    )
    + "}"
)
"""Pairs of float16 of two tokens: 1,024 + 128 + code is what a byte above 0x64 means."""


@gluon.constexpr_function
def keys_held(warps):
    """Return how threads hold codes [W, 32 tokens, 32 channels]: eight of a token at once."""
    held = [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 8, 0], [0, 16, 0]]
    lanes = [[0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(held, lanes, spread(warps, 3), [], [warps, 32, 32])


@gluon.constexpr_function
def key_scales_held(warps):
    """Return how threads hold scales [W, 128], four a token: those of the scores they get."""
    held = [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64]]
    lanes = [[0, 8], [0, 16], [0, 0], [0, 0], [0, 0]]
    return gl.DistributedLinearLayout(held, lanes, spread(warps, 2), [], [warps, 128])


@gluon.constexpr_function
def values_held(warps):
    """Return how threads hold words [W, 16 pairs of tokens, 32]: four of a token at once."""
    held = [[0, 0, 1], [0, 0, 2], [0, 4, 0], [0, 8, 0]]
    lanes = [[0, 1, 0], [0, 2, 0], [0, 0, 4], [0, 0, 8], [0, 0, 16]]
    return gl.DistributedLinearLayout(held, lanes, spread(warps, 3), [], [warps, 16, 32])


@gluon.constexpr_function
def value_scales_held(warps):
    """Return how threads hold a scale [W, 16 pairs, 8] of every sixteen columns."""
    held = [[0, 4, 0], [0, 8, 0]]
    lanes = [[0, 1, 0], [0, 2, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]]
    return gl.DistributedLinearLayout(held, lanes, spread(warps, 3), [], [warps, 16, 8])


@gluon.constexpr_function
def along(axis, held):
    """Return the layout of an index along one of three dimensions of what is held so."""
    others = [dim for dim in range(3) if dim != axis]
    return gl.SliceLayout(others[0], gl.SliceLayout(others[1], held))


@gluon.constexpr_function
def spread(warps, rank):
    """Return bases of ``warps`` warps along the first of ``rank`` dimensions."""
    found = []
    step = 1
    while step < warps:
        found.append([step] + [0] * (rank - 1))
        step *= 2
    return found


@gluon.jit
def lines_of(table, number, count, kv_head, kv_heads, LAYOUT: gl.constexpr):
    """Return the first line of the block that each warp takes in a round, int64 [W]."""
    index = number * gl.num_warps() + gl.arange(0, gl.num_warps(), layout=LAYOUT)
    block = gl.load(table + index, mask=index < count, other=0)
    return (block.to(gl.int64) * kv_heads + kv_head) * BLOCK


@gluon.jit
def ask_keys(keys, scales, lines, there):
    """Return the codes of a block in four groups of channels, and their scales [W, 128]."""
    held: gl.constexpr = keys_held(gl.num_warps())
    flat: gl.constexpr = key_scales_held(gl.num_warps())
    line = gl.convert_layout(lines, along(0, held))[:, None, None]
    exists = gl.convert_layout(there, along(0, held))[:, None, None]
    token = gl.arange(0, BLOCK, layout=along(1, held))[None, :, None]
    offset = token * HEAD_DIM + gl.arange(0, CHANNELS, layout=along(2, held))[None, None, :]
    at = keys + line * HEAD_DIM + offset
    codes: gl.tuple = ()
    for group in gl.static_range(GROUPS):
        codes += (gl.load(at + group * CHANNELS, mask=exists & (offset >= 0), other=0),)
    line = gl.convert_layout(lines, gl.SliceLayout(1, flat))[:, None]
    exists = gl.convert_layout(there, gl.SliceLayout(1, flat))[:, None]
    index = gl.arange(0, BLOCK * GROUPS, layout=gl.SliceLayout(0, flat))[None, :]
    at = scales + line * GROUPS + index
    return codes, gl.load(at, mask=exists & (index >= 0), other=0.0)


@gluon.jit
def ask_values(values, scales, lines, rest):
    """Return the words of a block's even and odd tokens, and of each sixteen columns the scale.

    Scales are zeros of tokens past ``rest``, int32 [W]: what lies there may be no number.
    """
    held: gl.constexpr = values_held(gl.num_warps())
    few: gl.constexpr = value_scales_held(gl.num_warps())
    words: gl.constexpr = HEAD_DIM // 4
    line = gl.convert_layout(lines, along(0, held))[:, None, None]
    exists = gl.convert_layout(rest, along(0, held))[:, None, None] > 0
    pair = gl.arange(0, BLOCK // 2, layout=along(1, held))[None, :, None]
    offset = pair * 2 * words + gl.arange(0, words, layout=along(2, held))[None, None, :]
    at = values + line * words + offset
    even = gl.load(at, mask=exists & (offset >= 0), other=0)
    odd = gl.load(at + words, mask=exists & (offset >= 0), other=0)
    line = gl.convert_layout(lines, along(0, few))[:, None, None]
    limit = gl.convert_layout(rest, along(0, few))[:, None, None]
    token = gl.arange(0, BLOCK // 2, layout=along(1, few))[None, :, None] * 2
    place = gl.arange(0, HEAD_DIM // 16, layout=along(2, few))[None, None, :]
    at = scales + line * GROUPS + (token * GROUPS + place // 2)
    first = gl.load(at, mask=token + place * 0 < limit, other=0)
    second = gl.load(at + GROUPS, mask=token + place * 0 + 1 < limit, other=0)
    return even, odd, first, second


@gluon.jit
def query_digits(queries, first_head, group, LEFT: gl.constexpr):
    """Return the digits of a row's queries in four groups of channels, and what a one of them is.

    Channels are in the order in which ``keys_of`` has those of keys.
    """
    warps: gl.constexpr = gl.num_warps()
    all_warps: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [warps, 1, 1], [2, 1, 0])
    rows: gl.constexpr = gl.SliceLayout(0, all_warps)
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, rows))
    k = gl.arange(0, 128, layout=gl.SliceLayout(0, rows))
    channel = (k & 99) + ((k & 12) << 1) + ((k & 16) >> 2)
    at = queries + ((first_head + head) * 128)[:, None] + channel[None, :]
    mask = (head < group)[:, None] & (k >= 0)[None, :]
    values = gl.load(at, mask=mask, other=0.0).to(gl.float32)
    largest = gl.max(gl.abs(values), 1)
    largest = gl.where(largest > 0.0, largest, 1.0)
    numbers = values * (LARGEST / largest)[:, None] + ROUNDING
    numbers = numbers.to(gl.int32, bitcast=True) - ROUNDING_BITS
    high = (numbers + DIGIT // 2) >> 7
    both = gl.join(high, numbers - high * DIGIT).to(gl.int8)
    both = both.permute((2, 0, 1)).reshape((1, 16, 128))
    both = gl.convert_layout(
        both, gl.BlockedLayout([1, 1, 4], [1, 1, 32], [warps, 1, 1], [2, 1, 0])
    )
    both = both + gl.zeros([warps, 1, 1], gl.int8, both.type.layout)
    both = gl.convert_layout(both, LEFT).reshape((warps, 16, 2, 2, 32)).permute((0, 1, 4, 3, 2))
    first, second = both.split()
    a, b = first.split()
    c, d = second.split()
    digits: gl.tuple = ()
    for part in gl.static_range(4):
        one = (a, b, c, d)[part]
        digits += (gl.convert_layout(one, LEFT, assert_trivial=True),)
    return digits, largest / LARGEST


@gluon.jit
def keys_of(codes, RIGHT: gl.constexpr):
    """Return codes [W, 32 tokens, 32 channels] as an operand [W, 32 channels, 32 tokens]."""
    parts = codes.reshape((codes.shape[0], 32, 4, 2, 4)).permute((0, 3, 2, 4, 1))
    turned = parts.reshape((codes.shape[0], 32, 32))
    return gl.convert_layout(turned, RIGHT, assert_trivial=True)


@gluon.jit
def score_block(digits, codes, scales, LAYOUT: gl.constexpr, RIGHT: gl.constexpr):
    """Return float32 [W, 8, 32]: digits times the codes of a block, times the codes' scales."""
    warps: gl.constexpr = gl.num_warps()
    nothing = gl.zeros([warps, 16, 32], gl.int32, LAYOUT)
    low_pair, high_pair = scales.reshape((warps, 32, 2, 2)).permute((0, 1, 3, 2)).split()
    s0, s1 = low_pair.split()
    s2, s3 = high_pair.split()
    each: gl.tuple = (s0, s1, s2, s3)
    for group in gl.static_range(4):
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
def values_of(even, odd, even_scale, odd_scale, LEFT: gl.constexpr):
    """Return float16 [W, 128, 32]: values of a block, columns in the order of ``columns_back``."""
    warps: gl.constexpr = gl.num_warps()
    scale = even_scale.to(gl.int32) | odd_scale.to(gl.int32) << 16
    scale = gl.join(gl.join(scale, scale), gl.join(scale, scale))
    scale = gl.convert_layout(scale.reshape((warps, 16, 32)), even.type.layout, assert_trivial=True)
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        WIDEN, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r", [even, odd, scale],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16,
               gl.float16),
        is_pure=True, pack=2,
    )  # fmt: skip
    first = gl.join(gl.join(a, b), gl.join(c, d))
    second = gl.join(gl.join(e, f), gl.join(g, h))
    joined = gl.join(first, second).reshape((warps, 16, 8, 2, 2, 2, 2, 2))
    turned = joined.permute((0, 3, 7, 6, 5, 2, 1, 4)).reshape((warps, 128, 32))
    return gl.convert_layout(turned, LEFT, assert_trivial=True)


@gluon.jit
def columns_back(values):
    """Return [8, 128] of [128, 8], whose column c lies in row c % 16 * 8 + c // 16."""
    return values.reshape((16, 8, 8)).permute((2, 1, 0)).reshape((8, 128))


@gluon.jit
def store_heads(values, outputs, scales, sums, row, first_head, group, num_heads):
    """Store heads [8, 128] of a row: int8 with a scale and a sum a head, or bfloat16."""
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    values = gl.convert_layout(values, rows)
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, rows))
    column = gl.arange(0, 128, layout=gl.SliceLayout(0, rows))
    line = row * num_heads + first_head + head
    at = (line * 128)[:, None] + column[None, :]
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
    digits, one = query_digits(queries + row * num_heads * 128, first_head, group, digits_layout)

    attended = gl.zeros([warps, 128, HEADS], gl.float32, scores_layout)
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
