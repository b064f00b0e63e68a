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
def dot4(a, b, c, SIGNED: tl.constexpr, PLAIN: tl.constexpr):
    """Return int32 ``c`` plus the four byte products of ``a`` and ``b``.

    The bytes of ``b`` are signed, those of ``a`` where SIGNED says so.
    """
    if PLAIN:
        total = c
        for index in tl.static_range(4):
            total += byte_of(a, index, SIGNED) * byte_of(b, index, True)
        return total
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;" if SIGNED else "dp4a.u32.s32 $0, $1, $2, $3;",
        "=r,r,r,r",
        [a, b, c],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def interleave(low, high, PLAIN: tl.constexpr):
    """Return bytes (low 0, high 0, low 1, high 1) and (low 2, high 2, low 3, high 3)."""
    if PLAIN:
        front = low & 0xFF | ((high & 0xFF) << 8)
        front |= ((low & 0xFF00) << 8) | ((high & 0xFF00) << 16)
        back = (low >> 16) & 0xFF | ((high >> 8) & 0xFF00)
        back |= ((low >> 8) & 0xFF0000) | ((high >> 24) << 24)
        return front, back
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x5140; prmt.b32 $1, $2, $3, 0x7362;",
        "=&r,=r,r,r",
        [low, high],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def opaque(index, PLAIN: tl.constexpr):
    """Return ``index``, of whose order the compiler knows nothing.

    It would otherwise load consecutive scales as one vector, in a layout that is not the weights',
    and exchange them between threads through shared memory at each step.
    """
    if PLAIN:
        return index
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [index], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def prefetch(starts, length_bytes):
    """Bring what lies at each address to the second-level cache; sm_90 and later.

    Nobody waits for it, so it may come before ``gdc_wait``.

    Args:
        starts: Addresses, multiples of 16.
        length_bytes: Bytes at each, a multiple of 16.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred any; setp.gt.s32 any, $2, 0; mov.b32 $0, 0; "
        "@any cp.async.bulk.prefetch.L2.global [$1], $2; }",
        "=r,l,r",
        [starts.to(tl.int64), length_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def dot_16(left, right, total, PLAIN: tl.constexpr):
    """Return ``total`` plus the product of two 16-bit tiles."""
    if PLAIN:  # the interpreter does not multiply bfloat16
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    return tl.dot(left, right, total)


@triton.jit
def split_of_pieces(pieces, C: tl.constexpr):
    """Return the first and last piece of this program's split; splits differ by one step of C."""
    steps = tl.cdiv(pieces, C)
    splits = tl.num_programs(1)
    split = tl.program_id(1)
    begin = (split * steps) // splits * C
    end = tl.minimum(((split + 1) * steps) // splits * C, pieces)
    return begin, end


@triton.jit
def tile_rows(N, R: tl.constexpr, T: tl.constexpr):
    """Return the rows of this program's tile and those to read in their place, int32 [R, T].

    Past the end the last row is read again; it is not stored.
    """
    inner = tl.arange(0, R)[:, None] * T + tl.arange(0, T)[None, :]
    n = tl.program_id(0) * (R * T) + inner
    return n, tl.minimum(n, N - 1)


@triton.jit
def tile_tokens(rows, ROWS: tl.constexpr):
    """Return the numbers of this program's tokens, a tuple; past the end the last one stands in."""
    tokens: tl.tuple = ()
    for index in tl.static_range(ROWS):
        tokens += (tl.minimum(tl.program_id(2) * ROWS + index, rows - 1),)
    return tokens


@triton.jit
def zero_totals(ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr, C: tl.constexpr):
    """Return a sum of zero for each token, a tuple of float32 [R, T, C]."""
    totals: tl.tuple = ()
    for _ in tl.static_range(ROWS):
        totals += (tl.zeros((R, T, C), tl.float32),)
    return totals


@triton.jit
def store_totals(outputs, totals, factor, n, rows, N, ROWS: tl.constexpr):
    """Write each token's sums times ``factor`` to its row of this program's split.

    ``totals`` are float32 [R, T, C], summed over C here; ``factor`` is [R, T, 1], or 1.0.
    """
    for index in tl.static_range(ROWS):
        m = tl.program_id(2) * ROWS + index
        row = (tl.program_id(1) * rows + m).to(tl.int64)
        inside = (n < N) & (m + tl.zeros_like(n) < rows)
        tl.store(outputs + row * N + n, tl.sum(totals[index] * factor, 2), mask=inside)
