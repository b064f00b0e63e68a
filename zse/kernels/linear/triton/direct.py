"""A matrix times a few tokens whose weights go from memory to the tensor cores unshared.

A thread loads sixteen bytes of a row at once. A product of tensor cores asks of it four bytes here
and four there; but a sum has no order, so where weights and activations are loaded alike, what a
thread has is what the product takes, of other columns. No byte goes through shared memory and no
warp waits for another one: only for weights that were asked for some groups before.

Products of a group are exact, and groups are added as ``batch.imma_four_bit`` adds them, so a row
has the bits that it has there.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra import cuda

BLOCK = gl.constexpr(32)
"""Words of the 128 activations that share a scale."""
WORDS = gl.constexpr(16)
"""Words of a row that a warp loads at once: half a block of bytes, a whole one of four bits."""
BYTES = gl.constexpr("mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7;")
NIBBLES = gl.constexpr(
    "".join(
        f"and.b32 ${i}, ${i + 8}, 0x0F0F0F0F; "
        f"shr.u32 ${i + 4}, ${i + 8}, 4; and.b32 ${i + 4}, ${i + 4}, 0x0F0F0F0F; "
        for i in range(4)
    )
)


@gluon.constexpr_function
def powers(first, end):
    """Return first, 2 * first and so on below ``end``."""
    found = []
    while first < end:
        found.append(first)
        first *= 2
    return found


@gluon.constexpr_function
def loaded(rows, warps, shared):
    """Return how threads hold words [rows, 16]: four of a row at once.

    ``shared`` says whether all warps hold the same, as of activations, or each rows of its own.
    """
    own = powers(16, 16 * warps)
    held = [[0, 1], [0, 2]]
    held += [[row, 0] for row in powers(8, rows) if shared or row not in own]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    spread = [[0, 0] if shared else [row, 0] for row in own]
    return gl.DistributedLinearLayout(held, lanes, spread, [], [rows, 16])


@gluon.jit
def joined(first, second):
    """Return [rows, 2 * K] of two tensors [rows, K]."""
    both = gl.join(first, second).permute((0, 2, 1))
    return both.reshape((both.shape[0], both.shape[1] * both.shape[2]))


@gluon.jit
def bytes_of(words):
    """Return int8 [rows, 64]: the bytes of words [rows, 16], each fourth word's side by side."""
    a, b, c, d = gl.inline_asm_elementwise(
        BYTES, "=&r,=&r,=&r,=r,r,r,r,r", [words],
        dtype=(gl.int8, gl.int8, gl.int8, gl.int8), is_pure=True, pack=4,
    )  # fmt: skip
    return joined(joined(a, b), joined(c, d))


@gluon.jit
def nibbles_of(words):
    """Return the low and the high four bits of each byte, as ``bytes_of`` does."""
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        NIBBLES, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r", [words],
        dtype=(gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8, gl.int8),
        is_pure=True, pack=4,
    )  # fmt: skip
    return joined(joined(a, b), joined(c, d)), joined(joined(e, f), joined(g, h))


@gluon.jit
def half_of(word, HIGH: gl.constexpr):
    """Return the float16 in the low or high half of int32 words, as float32."""
    bits = (word >> 16) if HIGH else word
    return (bits & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


@gluon.jit
def ask_weights(weights_at, scales_at, block, end, AHEAD: gl.constexpr, SCHEME: gl.constexpr):
    """Return what a row stores of the block AHEAD of ``block``, and its scales.

    From ``end`` on scales are zero, and nothing is read.
    """
    there = block + AHEAD < end
    each: gl.constexpr = 2 * WORDS if SCHEME == "int8" else WORDS
    at = weights_at + AHEAD * each
    stored: gl.tuple = (gl.load(at, mask=there, eviction_policy="evict_first"),)
    if SCHEME == "int8":
        stored += (gl.load(at + WORDS, mask=there, eviction_policy="evict_first"),)
        scale = scales_at
    else:
        scale = gl.load(scales_at + AHEAD, mask=there, other=0)
    return stored, scale


@gluon.jit
def halves_of(stored, LAYOUT: gl.constexpr, SCHEME: gl.constexpr):
    """Return int8 [BN, 64] of the first and of the second half of a block."""
    if SCHEME == "int8":
        low, high = bytes_of(stored[0]), bytes_of(stored[1])
    else:
        low, high = nibbles_of(stored[0])
    return gl.convert_layout(low, LAYOUT), gl.convert_layout(high, LAYOUT)


@gluon.jit
def ask_inputs(codes_at, x_scales_at, x_sums_at, block, end, AHEAD: gl.constexpr):
    """Return both halves of a block of activations, their scale and their sum; see above."""
    there = block + AHEAD < end
    low = gl.load(codes_at + AHEAD * BLOCK, mask=there)
    high = gl.load(codes_at + (AHEAD * BLOCK + WORDS), mask=there)
    x_scale = gl.load(x_scales_at + AHEAD, mask=there, other=0.0)
    return low, high, x_scale, gl.load(x_sums_at + AHEAD, mask=there, other=0.0)


@gluon.jit
def add_block(total, product, scale, x_scale, x_sum, SCHEME: gl.constexpr):
    """Return ``total`` [BN, BM] plus the products of a block, scaled: ``batch.add_group``."""
    scaled = product.to(gl.float32) * x_scale[None, :]
    if SCHEME == "int8":
        total += scaled
    else:
        total += scaled * half_of(scale, False)[:, None]
        total += half_of(scale, True)[:, None] * x_sum[None, :]
    return total


@gluon.jit
def imma_direct(codes, x_scales, x_sums, weights, scales, outputs, rows, N, blocks,
                SCHEME: gl.constexpr, BN: gl.constexpr, BM: gl.constexpr, DEPTH: gl.constexpr,
                PDL: gl.constexpr):  # fmt: skip
    """Write float32 [splits, rows, N]: int8 [rows, K] times rows of int4 or int8 weights [N, K].

    Weights are asked for DEPTH blocks at a time, the first ones before the kernel before this one
    has ended.

    Operands:
        codes: int8 [rows, K], as words.
        x_scales: float32 [rows, K / 128]; ``x_sums`` as well.
        weights: uint8 [N, K / 2] of int4 in groups of 128, int8 [N, K] of int8; as words.
        scales: int32 pairs [N, K / 128]; float32 [N] of int8.
        outputs: float32 [splits, rows, N].
        rows: Tokens.
        N: Rows of the matrix.
        blocks: K / 128.
    """
    each: gl.constexpr = 2 * WORDS if SCHEME == "int8" else WORDS
    warps: gl.constexpr = gl.num_warps()
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 4)
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 4)
    held: gl.constexpr = loaded(BN, warps, False)
    taken: gl.constexpr = loaded(BM, warps, True)
    if PDL:
        cuda.gdc_launch_dependents()
    split, splits = gl.program_id(1), gl.num_programs(1)
    begin, end = split * blocks // splits, (split + 1) * blocks // splits

    first = gl.program_id(0) * BN
    row = gl.minimum(first + gl.arange(0, BN, layout=gl.SliceLayout(1, held)), N - 1)
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, held))
    weights_at = weights + (row.to(gl.int64) * blocks + begin)[:, None] * each + word[None, :]
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(1, sums))
    scales_at = scales + gl.minimum(n, N - 1) * (1 if SCHEME == "int8" else blocks)
    if SCHEME != "int8":
        scales_at += begin
    slots: gl.tuple = ()
    for depth in gl.static_range(DEPTH):
        slots += (ask_weights(weights_at, scales_at, begin, end, depth, SCHEME),)

    token = gl.program_id(2) * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, taken))
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, taken))
    line = gl.minimum(token, rows - 1) * blocks + begin
    codes_at = codes + line[:, None] * BLOCK + word[None, :]
    m = gl.program_id(2) * BM + gl.arange(0, BM, layout=gl.SliceLayout(0, sums))
    x_scales_at = x_scales + (gl.minimum(m, rows - 1) * blocks + begin)
    x_sums_at = x_sums + (gl.minimum(m, rows - 1) * blocks + begin)
    if PDL:
        cuda.gdc_wait()

    total = gl.zeros([BN, BM], gl.float32, sums)
    nothing = gl.zeros([BN, BM], gl.int32, sums)
    for start in range(begin, end, DEPTH):
        following: gl.tuple = ()
        for depth in gl.static_range(DEPTH):
            low_x, high_x, x_scale, x_sum = ask_inputs(
                codes_at, x_scales_at, x_sums_at, start, end, depth
            )
            low_x = gl.convert_layout(bytes_of(low_x).permute((1, 0)), right)
            high_x = gl.convert_layout(bytes_of(high_x).permute((1, 0)), right)
            stored, scale = slots[depth]
            low, high = halves_of(stored, left, SCHEME)
            following += (ask_weights(weights_at, scales_at, start, end, depth + DEPTH, SCHEME),)
            product = mma_v2(high, high_x, mma_v2(low, low_x, nothing))
            total = add_block(total, product, scale, x_scale, x_sum, SCHEME)
        slots = following
        weights_at += DEPTH * each
        codes_at += DEPTH * BLOCK
        x_scales_at += DEPTH
        x_sums_at += DEPTH
        if SCHEME != "int8":
            scales_at += DEPTH
    if SCHEME == "int8":
        total *= gl.load(scales_at)[:, None]
    at = outputs + (split * rows + m).to(gl.int64)[None, :] * N + n[:, None]
    gl.store(at, total, mask=(n < N)[:, None] & (m < rows)[None, :])
