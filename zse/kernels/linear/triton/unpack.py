"""Weights from their stored bytes to the operands of tensor cores, in registers.

A tile of packed bytes [BN, GROUP / 2] gives two tiles of as many values, of the first and of the
second half of the group, both in the order of the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES, SCALE_BIAS
from zse.kernels.linear import tables
from zse.kernels.triton.parts import NF4_VALUES, high_half, look_up, low_half

MXFP4_VALUES = tl.constexpr(MXFP4_CODES)
NF4_INT8 = tl.constexpr(tables.NF4_INT8)
NF4_STEP = tl.constexpr(1 / tables.NF4_INT8_SCALE)
"""What one step of the int8 values of NF4 codes stands for."""
MXFP4_INT8 = tl.constexpr(tables.MXFP4_INT8)
MXFP4_STEP = tl.constexpr(1 / tables.MXFP4_INT8_SCALE)
"""What one step of the int8 values of MXFP4 codes stands for."""
NL4_LEVELS = tl.constexpr(NL4_CODES)
NL4_EXPONENT = tl.constexpr((127 - SCALE_BIAS) << 23)
NIBBLES = tl.constexpr(
    "{ and.b32 $0, $2, 0x0F0F0F0F; shr.u32 $1, $2, 4; and.b32 $1, $1, 0x0F0F0F0F; }"
)
NF4_WORDS = tl.constexpr(tables.int8_of_words(tables.NF4_INT8))
NF4_BYTES = tl.constexpr(tables.int8_of_bytes(tables.NF4_INT8))
NF4_BFLOAT16 = tl.constexpr(tables.bfloat16_of_bytes(NF4_CODES))
MXFP4_WORDS = tl.constexpr(tables.int8_of_words(tables.MXFP4_INT8))
MXFP4_BYTES = tl.constexpr(tables.int8_of_bytes(tables.MXFP4_INT8))
MXFP4_BFLOAT16 = tl.constexpr(tables.bfloat16_of_bytes(MXFP4_CODES))
NL4_WORDS = tl.constexpr(tables.int8_of_words(NL4_CODES))
NL4_BYTES = tl.constexpr(tables.int8_of_bytes(NL4_CODES))
NL4_BFLOAT16 = tl.constexpr(tables.bfloat16_of_bytes(NL4_CODES))
NL4_PAIRS_BFLOAT16 = tl.constexpr(tables.bfloat16_of_bytes(NL4_CODES, in_pairs=True))


@triton.jit
def packed_bytes(line, SCHEME: tl.constexpr, GROUP: tl.constexpr, KEPT: tl.constexpr):
    """Return the bytes [BN, GROUP / 2] of a group as four-bit codes are packed.

    ``line`` [BN, 1] has the addresses of their first bytes; int3 and int2 are put together.
    KEPT says whether caches should keep them.
    """
    policy: tl.constexpr = "" if KEPT else "evict_first"
    k = tl.arange(0, GROUP // 2)
    if SCHEME != "int3" and SCHEME != "int2":
        return tl.load(line + k[None, :], eviction_policy=policy)
    bits: tl.constexpr = 3 if SCHEME == "int3" else 2
    word = k % 16 // 4
    piece = line + (k // 16 * (4 * bits) + k % 4)[None, :]
    pairs = tl.load(piece + (word // 2 * 4)[None, :]).to(tl.int32)
    packed = (pairs >> (word % 2 * 2)[None, :]) & 0x33
    if SCHEME == "int3":
        packed |= ((tl.load(piece + 8).to(tl.int32) >> word[None, :]) & 0x11) << 2
    return packed.to(tl.uint8)


@triton.jit
def words_of_few_bits(words, thirds, SCHEME: tl.constexpr):
    """Return int4's words [R, T, C, 4] of int2 or int3 pieces.

    ``words`` [R, T, C, 2] have two bits of each code, ``thirds`` [R, T, C] the third (int3).
    """
    first = words & 0x33333333
    second = (words >> 2) & 0x33333333
    found = tl.reshape(tl.join(first, second), (words.shape[0], words.shape[1], words.shape[2], 4))
    if SCHEME == "int3":
        place = tl.arange(0, 4)[None, None, None, :]
        found |= ((thirds[:, :, :, None] >> place) & 0x11111111) << 2
    return found


@triton.jit
def table_scale(scale, SCHEME: tl.constexpr):
    """Return the scales of nf4, nl4 and mxfp4 groups as float32, from what the file stores."""
    if SCHEME == "nl4":
        return minifloat(scale.to(tl.int32))
    if SCHEME == "mxfp4":  # bits 23 to 30 of a float32, but for the least: 2 ** -127 is not normal
        bits = tl.maximum(scale.to(tl.int32) << 23, 0x00400000)
        return bits.to(tl.float32, bitcast=True)
    return scale.to(tl.float32)


@triton.jit
def minifloat(byte):
    """Return a scale of nl4 as float32: a sign, four bits of exponent and three of mantissa."""
    bits = (((byte & 127) << 20) + NL4_EXPONENT) | ((byte >> 7) << 31)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def pair_of_scales(pair):
    """Return the scales of both groups of nl4_pairs as float32: of the low codes, of the high."""
    bytes_of_pair = pair.to(tl.int32)
    return minifloat(bytes_of_pair & 255), minifloat(bytes_of_pair >> 8)


@triton.jit
def split_zero(scale, minus_zero):
    """Return (minus_whole, rest) with ``minus_zero = (minus_whole - 128) * scale + rest``.

    ``minus_whole`` is a whole number that bfloat16 holds, less 128: the unpacked codes are 128 too
    large. ``rest`` is at most half a scale, so rounding it to bfloat16 costs nothing.
    """
    whole = tl.floor(minus_zero / tl.where(scale == 0.0, 1.0, scale) + 0.5)
    whole = tl.minimum(tl.maximum(whole, -64.0), 64.0)
    return whole - 128.0, minus_zero - whole * scale


@triton.jit
def unpack_int4(packed, scale, minus_zero, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of int4 bytes; ``scale`` and ``minus_zero`` are [BN]."""
    if PLAIN:
        s = scale[:, None]
        z = minus_zero[:, None]
        low = (packed & 15).to(tl.float32) * s + z
        return low.to(tl.bfloat16), ((packed >> 4).to(tl.float32) * s + z).to(tl.bfloat16)
    minus_whole, rest = split_zero(scale, minus_zero)
    s, _ = tl.broadcast(scale.to(tl.bfloat16)[:, None], packed)
    c, _ = tl.broadcast(minus_whole.to(tl.bfloat16)[:, None], packed)
    r, _ = tl.broadcast(rest.to(tl.bfloat16)[:, None], packed)
    # 0x4300 is 128 in bfloat16, whose last seven bits count ones.
    return tl.inline_asm_elementwise(
        """{ .reg .b32 a, b, t, one;
        mov.b32 one, 0x3F803F80;
        and.b32 a, $4, 0x0F0F0F0F;
        shr.u32 b, $4, 4; and.b32 b, b, 0x0F0F0F0F;
        prmt.b32 t, a, 0x43434343, 0x4140;
        fma.rn.bf16x2 t, t, one, $5; fma.rn.bf16x2 $0, t, $7, $9;
        prmt.b32 t, a, 0x43434343, 0x4342;
        fma.rn.bf16x2 t, t, one, $6; fma.rn.bf16x2 $1, t, $8, $10;
        prmt.b32 t, b, 0x43434343, 0x4140;
        fma.rn.bf16x2 t, t, one, $5; fma.rn.bf16x2 $2, t, $7, $9;
        prmt.b32 t, b, 0x43434343, 0x4342;
        fma.rn.bf16x2 t, t, one, $6; fma.rn.bf16x2 $3, t, $8, $10; }""",
        "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r",
        [packed, c, s, r],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def unpack_table(packed, scale, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of nf4, nl4 or mxfp4 bytes; ``scale`` is float32 [BN]."""
    if PLAIN:
        other: tl.constexpr = MXFP4_VALUES if SCHEME == "mxfp4" else NF4_VALUES
        table: tl.constexpr = NL4_LEVELS if SCHEME == "nl4" else other
        low = look_up(packed & 15, table).to(tl.bfloat16).to(tl.float32)
        high = look_up(packed >> 4, table).to(tl.bfloat16).to(tl.float32)
        s = scale.to(tl.bfloat16).to(tl.float32)[:, None]
        return (low * s).to(tl.bfloat16), (high * s).to(tl.bfloat16)
    s, _ = tl.broadcast(scale.to(tl.bfloat16)[:, None], packed)
    other_ptx: tl.constexpr = MXFP4_BFLOAT16 if SCHEME == "mxfp4" else NF4_BFLOAT16
    return tl.inline_asm_elementwise(
        NL4_BFLOAT16 if SCHEME == "nl4" else other_ptx,
        "=&r,=&r,=&r,=&r,r,r,r",
        [packed, s],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def unpack_pairs(packed, pair, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of nl4_pairs bytes; ``pair`` [BN] has the scales of both."""
    low_scale, high_scale = pair_of_scales(pair)
    if PLAIN:
        low = look_up(packed & 15, NL4_LEVELS) * low_scale[:, None]
        high = look_up(packed >> 4, NL4_LEVELS) * high_scale[:, None]
        return low.to(tl.bfloat16), high.to(tl.bfloat16)
    s, _ = tl.broadcast(low_scale.to(tl.bfloat16)[:, None], packed)
    t, _ = tl.broadcast(high_scale.to(tl.bfloat16)[:, None], packed)
    return tl.inline_asm_elementwise(
        NL4_PAIRS_BFLOAT16,
        "=&r,=&r,=&r,=&r,r,r,r,r,r",
        [packed, s, t],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def unpack_four_bit(packed, scale, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of packed bytes; ``scale`` [BN] is as the file stores it."""
    if SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2":
        return unpack_int4(packed, low_half(scale), high_half(scale), PLAIN)
    if SCHEME == "nl4_pairs":
        return unpack_pairs(packed, scale, PLAIN)
    return unpack_table(packed, table_scale(scale, SCHEME), SCHEME, PLAIN)


@triton.jit
def unpack_int8(codes, PLAIN: tl.constexpr):
    """Return int8 codes as bfloat16, exactly."""
    if PLAIN:
        return codes.to(tl.float32).to(tl.bfloat16)
    # 128 plus the low seven bits, less 128, or 256 where the sign is set.
    return tl.inline_asm_elementwise(
        """{ .reg .b32 a, b, t, u, one;
        mov.b32 one, 0x3F803F80;
        and.b32 a, $2, 0x7F7F7F7F; and.b32 b, $2, 0x80808080;
        prmt.b32 t, a, 0x43434343, 0x4140; prmt.b32 u, b, 0xC3C3C3C3, 0x4140;
        fma.rn.bf16x2 $0, t, one, u;
        prmt.b32 t, a, 0x43434343, 0x4342; prmt.b32 u, b, 0xC3C3C3C3, 0x4342;
        fma.rn.bf16x2 $1, t, one, u; }""",
        "=&r,=&r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def four_bit_codes(packed, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return the two int8 tiles of packed bytes: int4 codes 0 to 15, else values of a table."""
    is_whole: tl.constexpr = SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2"
    if PLAIN:
        low = packed & 15
        high = packed >> 4
        if not is_whole:
            table: tl.constexpr = MXFP4_INT8 if SCHEME == "mxfp4" else NF4_INT8
            low = look_up(low, table)
            high = look_up(high, table)
        return low.to(tl.int8), high.to(tl.int8)
    return tl.inline_asm_elementwise(
        NIBBLES if is_whole else (MXFP4_BYTES if SCHEME == "mxfp4" else NF4_BYTES),
        "=&r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def table_bytes(words, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return a word's nf4, nl4 or mxfp4 codes as int8 values, in the order of ``interleave``."""
    if PLAIN:
        other: tl.constexpr = MXFP4_INT8 if SCHEME == "mxfp4" else NF4_INT8
        table: tl.constexpr = NL4_LEVELS if SCHEME == "nl4" else other
        front = tl.zeros_like(words)
        back = tl.zeros_like(words)
        for index in tl.static_range(4):
            first = look_up((words >> (4 * index)) & 15, table).to(tl.int32)
            front |= (first & 0xFF) << (8 * index)
            second = look_up((words >> (4 * index + 16)) & 15, table).to(tl.int32)
            back |= (second & 0xFF) << (8 * index)
        return front, back
    other_ptx: tl.constexpr = MXFP4_WORDS if SCHEME == "mxfp4" else NF4_WORDS
    return tl.inline_asm_elementwise(
        NL4_WORDS if SCHEME == "nl4" else other_ptx,
        "=&r,=r,r",
        [words],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def pair_bytes(words, PLAIN: tl.constexpr):
    """Return the int8 values of four low and of four high codes of each word of nl4_pairs."""
    if PLAIN:
        low = tl.zeros_like(words)
        high = tl.zeros_like(words)
        for index in tl.static_range(4):
            first = look_up((words >> (8 * index)) & 15, NL4_LEVELS).to(tl.int32)
            low |= (first & 0xFF) << (8 * index)
            second = look_up((words >> (8 * index + 4)) & 15, NL4_LEVELS).to(tl.int32)
            high |= (second & 0xFF) << (8 * index)
        return low, high
    return tl.inline_asm_elementwise(
        NL4_BYTES,
        "=&r,=r,r",
        [words],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
