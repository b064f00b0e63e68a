"""A matrix times many tokens: widen rows of it to 16 bits, then multiply on tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear import weight as layout
from zse.kernels.linear.triton.parts import dot_16
from zse.kernels.linear.triton.unpack import packed_bytes, unpack_four_bit
from zse.kernels.triton.parts import wait_for_inputs

EVEN_ROWS = tl.constexpr(layout.EVEN_ROWS)


@triton.jit
def widen_four_bit(weights, scales, outputs, rows, groups, SCHEME: tl.constexpr,
                   GROUP: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
                   PLAIN: tl.constexpr):  # fmt: skip
    """Write bfloat16 [rows, K] of four-bit weights: one group of BN rows a program.

    Operands:
        weights: uint8 [rows, K / 2]; fewer bytes of int3 and int2.
        scales: int4, int3, int2: int32 pairs [rows, K / GROUP]; nf4: float16, nl4: uint8,
            nl4_pairs: uint16, mxfp4: uint8 exponents of the same shape.
        outputs: bfloat16 [rows, K].
        rows: Rows to widen.
        groups: K / GROUP.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    half: tl.constexpr = GROUP // 2
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    held = tl.minimum(row, rows - 1)
    group = tl.program_id(0)
    k = tl.arange(0, half)
    fewer: tl.constexpr = 2 if SCHEME == "int2" else 4
    group_bytes: tl.constexpr = GROUP * (3 if SCHEME == "int3" else fewer) // 8
    line = weights + (held * groups + group)[:, None] * group_bytes
    packed = packed_bytes(line, SCHEME, GROUP, True)
    scale = tl.load(scales + held * groups + group)
    if PDL:
        tl.extra.cuda.gdc_wait()
    low, high = unpack_four_bit(packed, scale, SCHEME, PLAIN)
    at = outputs + held[:, None] * (groups * GROUP) + group * GROUP + k[None, :]
    mask = (row < rows)[:, None]
    tl.store(at, low, mask=mask)
    tl.store(at + half, high, mask=mask)


@triton.jit
def widen_int8(weights, row_scales, outputs, rows, blocks, BK: tl.constexpr, BN: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    """Write bfloat16 [rows, K] of int8 weights: BK columns of BN rows a program.

    Operands:
        weights: int8 [rows, K].
        row_scales: float32 [rows].
        outputs: bfloat16 [rows, K].
        rows: Rows to widen.
        blocks: K / BK.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    held = tl.minimum(row, rows - 1)
    at = held.to(tl.int64)[:, None] * (blocks * BK) + tl.program_id(0) * BK
    at += tl.arange(0, BK)[None, :]
    codes = tl.load(weights + at)
    scale = tl.load(row_scales + held)
    if PDL:
        tl.extra.cuda.gdc_wait()
    widened = (codes.to(tl.float32) * scale[:, None]).to(tl.bfloat16)
    tl.store(outputs + at, widened, mask=(row < rows)[:, None])


@triton.jit
def grouped_tile(tile, tokens, rows, BM: tl.constexpr, BN: tl.constexpr, GROUPED: tl.constexpr):
    """Return where a tile lies: GROUPED tiles of tokens share a tile of weights in the cache."""
    tiles_m = tl.cdiv(tokens, BM)
    tiles_n = tl.cdiv(rows, BN)
    band = tile // (GROUPED * tiles_n)
    first = band * GROUPED
    height = tl.minimum(tiles_m - first, GROUPED)
    inside = tile % (GROUPED * tiles_n)
    return first + inside % height, inside // height


@triton.jit
def in_elements(count, EVEN: tl.constexpr):
    """Return a count of elements; where it is EVEN it came as a count of EVEN_ROWS.

    That tells the compiler that rows of the result start at multiples of it, so that it stores
    whole vectors.
    """
    if EVEN:
        return count * EVEN_ROWS
    return count


@triton.jit
def matmul(values, weights, outputs, tokens, rows, steps, stride, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr, GROUPED: tl.constexpr, STAGES: tl.constexpr,
           EVEN: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write [tokens, rows] of bfloat16 [tokens, K] times 16-bit [rows, K], both along K.

    Operands:
        values: bfloat16 [tokens, K].
        weights: bfloat16 or float16 [rows, K].
        outputs: float32 or bfloat16; row i starts at i * stride.
        tokens: Rows of the left side.
        rows: Rows of the matrix; divided by EVEN_ROWS if EVEN.
        steps: K / BK.
        stride: Columns of the whole output; divided by EVEN_ROWS if EVEN.
    """
    wait_for_inputs(PDL)
    rows = in_elements(rows, EVEN)
    stride = in_elements(stride, EVEN)
    tile_m, tile_n = grouped_tile(tl.program_id(0), tokens, rows, BM, BN, GROUPED)
    m = tile_m * BM + tl.arange(0, BM)
    n = tile_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    token = tl.minimum(m, tokens - 1).to(tl.int64)
    row = tl.minimum(n, rows - 1).to(tl.int64)
    x_at = values + token[:, None] * (steps * BK) + k[None, :]
    w_at = weights + row[:, None] * (steps * BK) + k[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, steps, num_stages=STAGES):
        x = tl.load(x_at)
        weight = tl.load(w_at)
        if weights.dtype.element_ty == tl.float16:
            x = x.to(tl.float16)
        total = dot_16(x, tl.trans(weight), total, PLAIN)
        x_at += BK
        w_at += BK
    at = outputs + m.to(tl.int64)[:, None] * stride + n[None, :]
    value = total.to(outputs.dtype.element_ty)
    tl.store(at, value, mask=(m < tokens)[:, None] & (n < rows)[None, :])


@triton.jit
def halves(tile):
    """Return the left and the right half of a tile."""
    split = tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2))
    return tl.split(tl.permute(split, (0, 2, 1)))


@triton.jit
def matmul_stream(values, weights, outputs, tokens, rows, steps, stride, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUPED: tl.constexpr,
                  STAGES: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr,
                  PLAIN: tl.constexpr):  # fmt: skip
    """As ``matmul`` by programs that stay: one for each multiprocessor, tile after tile.

    The copy engine brings the tiles, the first ones of the next product while this one is stored,
    and takes the result away: in halves, which need half the shared memory.
    """
    wait_for_inputs(PDL)
    rows = in_elements(rows, EVEN)
    stride = in_elements(stride, EVEN)
    columns = steps * BK
    half: tl.constexpr = BN // 2
    x_tiles = tl.make_tensor_descriptor(values, [tokens, columns], [columns, 1], [BM, BK])
    w_tiles = tl.make_tensor_descriptor(weights, [rows, columns], [columns, 1], [BN, BK])
    out_tiles = tl.make_tensor_descriptor(outputs, [tokens, rows], [stride, 1], [BM, half])
    tiles = tl.cdiv(tokens, BM) * tl.cdiv(rows, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(tile, tokens, rows, BM, BN, GROUPED)
        total = tl.zeros((BM, BN), tl.float32)
        for step in tl.range(0, steps, num_stages=STAGES):
            x = x_tiles.load([tile_m * BM, step * BK])
            weight = w_tiles.load([tile_n * BN, step * BK])
            total = dot_16(x, tl.trans(weight), total, PLAIN)
        left, right = halves(total)
        column = tile_n * BN
        out_tiles.store([tile_m * BM, column], left.to(outputs.dtype.element_ty))
        out_tiles.store([tile_m * BM, column + half], right.to(outputs.dtype.element_ty))
