"""Building blocks of the matrix kernels: four-way byte products, nibbles, scale pairs.

Each has a plain branch that gives identical integers, for the interpreter and for targets that
have no PTX.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def byte_of(word, index: tl.constexpr, SIGNED: tl.constexpr):
    """Return byte ``index`` of int32 words, as int32."""
    if SIGNED:
        return (word << (24 - 8 * index)) >> 24
    return (word >> (8 * index)) & 0xFF


@triton.jit
def plain_dot4(a, b, c, SIGNED: tl.constexpr):
    """Return ``c`` plus the four byte products of ``a`` and ``b``, by plain arithmetic."""
    total = c
    for index in tl.static_range(4):
        total += byte_of(a, index, SIGNED) * byte_of(b, index, True)
    return total


@triton.jit
def dot4_unsigned(a, b, c, PLAIN: tl.constexpr):
    """Return ``c`` plus the products of unsigned bytes ``a`` and signed bytes ``b``, int32."""
    if PLAIN:
        return plain_dot4(a, b, c, False)
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;",
        "=r,r,r,r",
        [a, b, c],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def dot4_signed(a, b, c, PLAIN: tl.constexpr):
    """Return ``c`` plus the products of signed bytes ``a`` and ``b``, int32."""
    if PLAIN:
        return plain_dot4(a, b, c, True)
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;",
        "=r,r,r,r",
        [a, b, c],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def low_half(pair):
    """Return the float16 in the low 16 bits of int32 words, as float32."""
    return (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(pair):
    """Return the float16 in the high 16 bits of int32 words, as float32."""
    return (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
