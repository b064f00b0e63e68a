"""Weights from their stored bytes to the operands of tensor cores, in registers.

A tile of packed bytes [BN, GROUP / 2] gives two tiles of as many values, of the first and of the
second half of the group, both in the order of the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear import nf4
from zse.kernels.triton.parts import NF4_VALUES, high_half, look_up, low_half

NF4_INT8 = tl.constexpr(nf4.NF4_INT8)
NF4_STEP = tl.constexpr(1 / nf4.NF4_INT8_SCALE)
"""What one step of the int8 values of NF4 codes stands for."""
NIBBLES = tl.constexpr(
    "{ and.b32 $0, $2, 0x0F0F0F0F; shr.u32 $1, $2, 4; and.b32 $1, $1, 0x0F0F0F0F; }"
)
INT8_OF_WORDS = tl.constexpr(nf4.INT8_OF_WORDS)
INT8_OF_BYTES = tl.constexpr(nf4.INT8_OF_BYTES)
BFLOAT16_OF_BYTES = tl.constexpr(nf4.BFLOAT16_OF_BYTES)


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
def unpack_nf4(packed, absmax, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of nf4 bytes; ``absmax`` is float32 [BN]."""
    if PLAIN:
        low = look_up(packed & 15, NF4_VALUES).to(tl.bfloat16).to(tl.float32)
        high = look_up(packed >> 4, NF4_VALUES).to(tl.bfloat16).to(tl.float32)
        s = absmax.to(tl.bfloat16).to(tl.float32)[:, None]
        return (low * s).to(tl.bfloat16), (high * s).to(tl.bfloat16)
    s, _ = tl.broadcast(absmax.to(tl.bfloat16)[:, None], packed)
    return tl.inline_asm_elementwise(
        BFLOAT16_OF_BYTES,
        "=&r,=&r,=&r,=&r,r,r,r",
        [packed, s],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def unpack_four_bit(packed, scale, SCHEME: tl.constexpr, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of packed bytes; ``scale`` [BN] is as the file stores it."""
    if SCHEME == "int4":
        return unpack_int4(packed, low_half(scale), high_half(scale), PLAIN)
    return unpack_nf4(packed, scale.to(tl.float32), PLAIN)


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
    """Return the two int8 tiles of packed bytes: int4 codes 0 to 15, ``NF4_INT8`` values of nf4."""
    if PLAIN:
        low = packed & 15
        high = packed >> 4
        if SCHEME == "nf4":
            low = look_up(low, NF4_INT8)
            high = look_up(high, NF4_INT8)
        return low.to(tl.int8), high.to(tl.int8)
    return tl.inline_asm_elementwise(
        NIBBLES if SCHEME == "int4" else INT8_OF_BYTES,
        "=&r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def nf4_bytes(words, PLAIN: tl.constexpr):
    """Return the int8 values of eight codes a word, in the order of ``interleave``."""
    if PLAIN:
        front = tl.zeros_like(words)
        back = tl.zeros_like(words)
        for index in tl.static_range(4):
            first = look_up((words >> (4 * index)) & 15, NF4_INT8).to(tl.int32)
            front |= (first & 0xFF) << (8 * index)
            second = look_up((words >> (4 * index + 16)) & 15, NF4_INT8).to(tl.int32)
            back |= (second & 0xFF) << (8 * index)
        return front, back
    return tl.inline_asm_elementwise(
        INT8_OF_WORDS, "=&r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
    )
