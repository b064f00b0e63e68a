"""Weights from their stored bytes to the operands of tensor cores, in registers.

A tile of packed bytes [BN, GROUP / 2] gives two tiles of as many values, of the first and of the
second half of the group, both in the order of the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton_parts import nf4_byte

NF4_VALUES = tl.constexpr(
    (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    )
)


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
def nf4_value(code):
    """Return the float32 value of NF4 codes."""
    value = tl.zeros(code.shape, tl.float32)
    for index in tl.static_range(16):
        value = tl.where(code == index, NF4_VALUES[index], value)
    return value


@triton.jit
def unpack_nf4(packed, absmax, PLAIN: tl.constexpr):
    """Return the two bfloat16 tiles of nf4 bytes; ``absmax`` is float32 [BN].

    Byte permutes look up the low and the high bytes of the sixteen values, rounded to bfloat16.
    """
    if PLAIN:
        low = nf4_value((packed & 15).to(tl.int32)).to(tl.bfloat16).to(tl.float32)
        high = nf4_value((packed >> 4).to(tl.int32)).to(tl.bfloat16).to(tl.float32)
        s = absmax.to(tl.bfloat16).to(tl.float32)[:, None]
        return (low * s).to(tl.bfloat16), (high * s).to(tl.bfloat16)
    s, _ = tl.broadcast(absmax.to(tl.bfloat16)[:, None], packed)
    return tl.inline_asm_elementwise(
        """{ .reg .b32 s, m, a, b, l, h, none;
        mov.b32 none, 0x80008000;
        and.b32 s, $4, 0x77777777;
        shr.u32 m, $4, 1; and.b32 m, m, 0x44444444; or.b32 m, m, 0x32103210;
        prmt.b32 a, 0xCA063280, 0x00BA3D92, s; prmt.b32 b, 0xAD7C25A3, 0x803910E2, s;
        prmt.b32 l, a, b, m;
        prmt.b32 a, 0xBEBFBFBF, 0x00BDBEBE, s; prmt.b32 b, 0x3E3E3E3D, 0x3F3F3F3E, s;
        prmt.b32 h, a, b, m;
        prmt.b32 a, l, h, 0x6240; fma.rn.bf16x2 $0, a, $5, none;
        prmt.b32 a, l, h, 0x7351; fma.rn.bf16x2 $2, a, $5, none;
        shr.u32 s, s, 16; shr.u32 m, m, 16;
        prmt.b32 a, 0xCA063280, 0x00BA3D92, s; prmt.b32 b, 0xAD7C25A3, 0x803910E2, s;
        prmt.b32 l, a, b, m;
        prmt.b32 a, 0xBEBFBFBF, 0x00BDBEBE, s; prmt.b32 b, 0x3E3E3E3D, 0x3F3F3F3E, s;
        prmt.b32 h, a, b, m;
        prmt.b32 a, l, h, 0x6240; fma.rn.bf16x2 $1, a, $6, none;
        prmt.b32 a, l, h, 0x7351; fma.rn.bf16x2 $3, a, $6, none; }""",
        "=&r,=&r,=&r,=&r,r,r,r",
        [packed, s],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


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
def nibbles(packed, PLAIN: tl.constexpr):
    """Return the two int8 tiles of int4 bytes, 0 to 15."""
    if PLAIN:
        return (packed & 15).to(tl.int8), (packed >> 4).to(tl.int8)
    return tl.inline_asm_elementwise(
        "{ and.b32 $0, $2, 0x0F0F0F0F; shr.u32 $1, $2, 4; and.b32 $1, $1, 0x0F0F0F0F; }",
        "=&r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )


@triton.jit
def nf4_codes(packed, PLAIN: tl.constexpr):
    """Return the two int8 tiles of nf4 bytes; see ``nf4_bytes``."""
    if PLAIN:
        low = nf4_byte((packed & 15).to(tl.int32))
        return low.to(tl.int8), nf4_byte((packed >> 4).to(tl.int32)).to(tl.int8)
    return tl.inline_asm_elementwise(
        """{ .reg .b32 s, m, a, b, f;
        and.b32 s, $2, 0x77777777;
        shr.u32 m, $2, 1; and.b32 m, m, 0x44444444; or.b32 m, m, 0x32103210;
        prmt.b32 a, 0xD4C5B290, 0x00F6EBE0, s; prmt.b32 b, 0x261C1209, 0x70513F31, s;
        prmt.b32 f, a, b, m;
        shr.u32 s, s, 16; shr.u32 m, m, 16;
        prmt.b32 a, 0xD4C5B290, 0x00F6EBE0, s; prmt.b32 b, 0x261C1209, 0x70513F31, s;
        prmt.b32 a, a, b, m;
        prmt.b32 $0, f, a, 0x6420; prmt.b32 $1, f, a, 0x7531; }""",
        "=&r,=r,r",
        [packed],
        dtype=(tl.int8, tl.int8),
        is_pure=True,
        pack=4,
    )
