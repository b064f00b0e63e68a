"""A matrix times a batch of tokens on tensor cores, weights unpacked in registers.

The matrix is the left operand, so a tile has many rows of it (BN) and few tokens (BM). A program
takes one tile and one split of the columns. ``dot_*`` take bfloat16 activations, ``imma_*`` int8
ones, whose products are whole numbers and exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import dot_16, prefetch
from zse.kernels.linear.triton.unpack import (
    MXFP4_STEP,
    NF4_STEP,
    four_bit_codes,
    packed_bytes,
    table_scale,
    unpack_four_bit,
    unpack_int8,
)
from zse.kernels.triton.parts import high_half, low_half

AHEAD_BYTES = tl.constexpr(512)
"""Bytes of a row of the matrix that are requested while the kernel before this one still runs."""
FIRST_PROGRAMS = tl.constexpr(512)
"""Programs that may start before the kernel before this one ends; later ones need no request."""


@triton.jit
def request(starts, length_bytes):
    """Ask for the first ``AHEAD_BYTES`` of each row of this program's tile."""
    index = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    first = (index < FIRST_PROGRAMS) & (tl.program_id(2) == 0)
    prefetch(starts, tl.where(first, tl.minimum(length_bytes, AHEAD_BYTES), 0))


@triton.jit
def split_of_groups(groups):
    """Return the first and last group of this program's split."""
    splits = tl.num_programs(1)
    split = tl.program_id(1)
    return (split * groups) // splits, ((split + 1) * groups) // splits


@triton.jit
def tile_of(rows, N, BN: tl.constexpr, BM: tl.constexpr):
    """Return rows of the matrix and tokens of this program, and each held inside its range."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    return n, tl.minimum(n, N - 1), m, tl.minimum(m, rows - 1)


@triton.jit
def store_tile(outputs, total, n, m, rows, N):
    """Write ``total`` [BN, BM] to float32 [splits, rows, N]."""
    at = (tl.program_id(1) * rows + m).to(tl.int64)[None, :] * N + n[:, None]
    tl.store(outputs + at, total, mask=(n < N)[:, None] & (m < rows)[None, :])


@triton.jit
def load_scales(at, inside):
    """Return the scales of one group of BN rows; ``inside`` is whether there is such a group."""
    return tl.load(at, mask=inside, other=0)


@triton.jit
def add_group(total, product, scale, x_low, x_high, x_scale, sum_at, SCHEME: tl.constexpr,
              GROUP: tl.constexpr):  # fmt: skip
    """Return ``total`` [BN, BM] plus the products of one group, scaled.

    Args:
        total: float32.
        product: Of the codes, int32 [BN, BM].
        scale: Of the group's weights, as the file stores it: [BN].
        x_low: Activations of the group's first half, int8 [BM, GROUP / 2].
        x_high: Those of its second half.
        x_scale: Their scale, float32 [BM].
        sum_at: Where the sums of the blocks of 128 that hold them lie, addresses [BM].
        SCHEME: int4, int3, int2, nf4 or mxfp4.
        GROUP: Columns of a group.
    """
    if SCHEME == "int4" or SCHEME == "int3" or SCHEME == "int2":
        if GROUP == 128:
            x_sum = tl.load(sum_at)
        else:
            count = tl.sum(x_low.to(tl.int32) + x_high.to(tl.int32), 1)
            x_sum = count.to(tl.float32) * x_scale
        total += product.to(tl.float32) * x_scale[None, :] * low_half(scale)[:, None]
        total += high_half(scale)[:, None] * x_sum[None, :]
    else:
        step = table_scale(scale, SCHEME) * (MXFP4_STEP if SCHEME == "mxfp4" else NF4_STEP)
        total += product.to(tl.float32) * x_scale[None, :] * step[:, None]
    return total


@triton.jit
def four_bit_total(values, x_scales, x_sums, weights, scales, row, token, begin, end, units,
                   UNIT: tl.constexpr, SCHEME: tl.constexpr, GROUP: tl.constexpr,
                   BN: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
                   PLAIN: tl.constexpr):  # fmt: skip
    """Return float32 [BN, BM]: rows of a four-bit matrix times tokens, of some groups.

    K is ``units`` times UNIT columns. Where PDL says so, it waits for the kernel before this one
    once the weights are on their way.

    Args:
        values: bfloat16, or int8 with ``x_scales`` and ``x_sums``.
        row: Rows of the matrix, [BN].
        token: Rows of the activations, [BM].
        begin: First group.
        end: Group behind the last one.
    """
    half: tl.constexpr = GROUP // 2
    fewer: tl.constexpr = 2 if SCHEME == "int2" else 4
    bits: tl.constexpr = 3 if SCHEME == "int3" else fewer
    group_bytes: tl.constexpr = GROUP * bits // 8
    per_unit: tl.constexpr = UNIT // GROUP
    k = tl.arange(0, half)
    start = weights + row * (units * (per_unit * group_bytes)) + begin * group_bytes
    at = start[:, None]
    x_at = values + token[:, None] * (units * UNIT) + begin * GROUP + k[None, :]
    scale_at = scales + row * (units * per_unit) + begin
    if PDL and bits == 4:  # others lie at no multiples of 16 bytes
        request(start, (end - begin) * half)
    scale = load_scales(scale_at, begin + row * 0 < end)
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((BN, BM), tl.float32)
    for group in tl.range(begin, end, num_stages=STAGES):
        packed = packed_bytes(at, SCHEME, GROUP, False)
        x_low = tl.load(x_at)
        x_high = tl.load(x_at + half)
        if values.dtype.element_ty == tl.int8:
            block = group // per_unit
            x_scale = tl.load(x_scales + token * units + block)
        scale_at += 1
        next_scale = load_scales(scale_at, group + 1 + row * 0 < end)
        if values.dtype.element_ty == tl.int8:
            low, high = four_bit_codes(packed, SCHEME, PLAIN)
            product = tl.dot(low, tl.trans(x_low), out_dtype=tl.int32)
            product = tl.dot(high, tl.trans(x_high), product, out_dtype=tl.int32)
            sum_at = x_sums + token * units + block
            total = add_group(total, product, scale, x_low, x_high, x_scale, sum_at, SCHEME, GROUP)
        else:
            low, high = unpack_four_bit(packed, scale, SCHEME, PLAIN)
            total = dot_16(low, tl.trans(x_low), total, PLAIN)
            total = dot_16(high, tl.trans(x_high), total, PLAIN)
        at += group_bytes
        x_at += GROUP
        scale = next_scale
    return total


@triton.jit
def whole_total(values, x_scales, weights, row_scales, row, token, begin, end, steps,
                SCHEME: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
                STAGES: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``four_bit_total`` for int8, bf16 and fp16 weights; K is ``steps`` times BK columns."""
    k = tl.arange(0, BK)
    start = weights + row.to(tl.int64) * (steps * BK) + begin * BK
    at = start[:, None] + k[None, :]
    if PDL:
        each: tl.constexpr = weights.dtype.element_ty.primitive_bitwidth // 8
        request(start, (end - begin) * (BK * each))
        tl.extra.cuda.gdc_wait()
    x_at = values + token[:, None] * (steps * BK) + begin * BK + k[None, :]
    total = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(begin, end, num_stages=STAGES):
        if values.dtype.element_ty == tl.int8:
            x_scale = tl.load(x_scales + token * steps + step)
        weight = tl.load(at, eviction_policy="evict_first")
        x = tl.load(x_at)
        if values.dtype.element_ty == tl.int8:
            product = tl.dot(weight, tl.trans(x), out_dtype=tl.int32)
            total += product.to(tl.float32) * x_scale[None, :]
        else:
            if SCHEME == "int8":
                weight = unpack_int8(weight, PLAIN)
            if SCHEME == "fp16":
                x = x.to(tl.float16)
            total = dot_16(weight, tl.trans(x), total, PLAIN)
        at += BK
        x_at += BK
    if SCHEME == "int8":
        total *= tl.load(row_scales + row)[:, None]
    return total


@triton.jit
def four_bit_tile(values, x_scales, x_sums, weights, scales, outputs, rows, N, units,
                  UNIT: tl.constexpr, SCHEME: tl.constexpr, GROUP: tl.constexpr,
                  BN: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
                  PLAIN: tl.constexpr):  # fmt: skip
    """Write one tile of one split for four-bit weights; see ``four_bit_total``."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin, end = split_of_groups(units * (UNIT // GROUP))
    n, row, m, token = tile_of(rows, N, BN, BM)
    total = four_bit_total(values, x_scales, x_sums, weights, scales, row, token, begin, end, units,
                           UNIT, SCHEME, GROUP, BN, BM, STAGES, PDL, PLAIN)  # fmt: skip
    store_tile(outputs, total, n, m, rows, N)


@triton.jit
def whole_tile(values, x_scales, weights, row_scales, outputs, rows, N, steps,
               SCHEME: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
               STAGES: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``four_bit_tile`` for int8, bf16 and fp16 weights; see ``whole_total``."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    begin, end = split_of_groups(steps)
    n, row, m, token = tile_of(rows, N, BN, BM)
    total = whole_total(values, x_scales, weights, row_scales, row, token, begin, end, steps,
                        SCHEME, BN, BM, BK, STAGES, PDL, PLAIN)  # fmt: skip
    store_tile(outputs, total, n, m, rows, N)


@triton.jit
def dot_four_bit(values, weights, scales, outputs, rows, N, groups, SCHEME: tl.constexpr,
                 GROUP: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
                 STAGES: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write float32 [splits, rows, N]: bfloat16 [rows, K] times four-bit weights [N, K].

    Operands:
        values: bfloat16 [rows, K].
        weights: uint8 [N, K / 2]; fewer bytes of int3 and int2.
        scales: int4, int3, int2: int32 pairs [N, K / GROUP]; nf4: float16, nl4: uint8,
            nl4_pairs: uint16, mxfp4: uint8 exponents of the same shape.
        outputs: float32 [splits, rows, N].
        rows: Tokens.
        N: Rows of the matrix.
        groups: K / GROUP.
    """
    four_bit_tile(values, scales, scales, weights, scales, outputs, rows, N, groups,
                  GROUP, SCHEME, GROUP, BN, BM, STAGES, PDL, PLAIN)  # fmt: skip


@triton.jit
def dot_whole(values, weights, row_scales, outputs, rows, N, steps, SCHEME: tl.constexpr,
              BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
              PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """As ``dot_four_bit`` for int8, bf16 and fp16 weights; K is ``steps`` times BK.

    ``row_scales`` are float32 [N], read only for int8.
    """
    whole_tile(values, row_scales, weights, row_scales, outputs, rows, N, steps,
               SCHEME, BN, BM, BK, STAGES, PDL, PLAIN)  # fmt: skip


@triton.jit
def imma_four_bit(codes, x_scales, x_sums, weights, scales, outputs, rows, N, blocks,
                  SCHEME: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr,
                  BM: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
                  PLAIN: tl.constexpr):  # fmt: skip
    """As ``dot_four_bit`` with int8 activations; nf4 values are rounded to int8.

    ``x_scales`` and ``x_sums`` are float32 [rows, K / 128]; ``blocks`` is K / 128.
    """
    four_bit_tile(codes, x_scales, x_sums, weights, scales, outputs, rows, N, blocks,
                  128, SCHEME, GROUP, BN, BM, STAGES, PDL, PLAIN)  # fmt: skip


@triton.jit
def imma_int8(codes, x_scales, weights, row_scales, outputs, rows, N, blocks,
              BN: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """As ``imma_four_bit`` for int8 weights; ``row_scales`` are float32 [N]."""
    whole_tile(codes, x_scales, weights, row_scales, outputs, rows, N, blocks,
               "int8", BN, BM, 128, STAGES, PDL, False)  # fmt: skip
