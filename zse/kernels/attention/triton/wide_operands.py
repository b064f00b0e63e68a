"""Blocks of an INT8 cache in the registers of a warp each, as products of tensor cores take them.

A thread asks for the very bytes that it needs: a sum has no order, so where keys and queries are
permuted alike, and values as the output is, no byte goes to another thread.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from zse.kernels import layout

BLOCK = gl.constexpr(layout.BLOCK_TOKENS)
CHANNELS = gl.constexpr(layout.SCALE_CHANNELS)
HEAD_DIM = gl.constexpr(128)
GROUPS = gl.constexpr(HEAD_DIM.value // layout.SCALE_CHANNELS)
"""Of channels of a head that share a scale."""
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
def keys_of(codes, RIGHT: gl.constexpr):
    """Return codes [W, 32 tokens, 32 channels] as an operand [W, 32 channels, 32 tokens]."""
    parts = codes.reshape((codes.shape[0], 32, 4, 2, 4)).permute((0, 3, 2, 4, 1))
    turned = parts.reshape((codes.shape[0], 32, 32))
    return gl.convert_layout(turned, RIGHT, assert_trivial=True)


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
