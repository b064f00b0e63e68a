"""Weights and activations to int8 with one scale a row, turned so that none of a row stands out.

Each run of 128 columns of both sides is multiplied by the same matrix of signs (Hadamard's), whose
rows are orthogonal: products stay what they were, 128 times as large, while what only one column
has is spread over all of them. Whole rows of a trained model's activations then fit into int8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.linear.triton.parts import dot_16
from zse.kernels.linear.triton.unpack import packed_bytes, unpack_four_bit, unpack_int8
from zse.kernels.triton.parts import GROUP, round_to_even, wait_for_inputs

HALF = tl.constexpr(GROUP.value // 2)
CHUNKS = tl.constexpr(32)
"""Most programs that share a row."""


@triton.jit
def signs(first: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return rows of Hadamard's matrix from ``first`` on: minus one where indices share odd ones.

    Indices are below 128.
    """
    row = first + tl.arange(0, ROWS)
    shared = row[:, None] & tl.arange(0, COLUMNS)[None, :]
    shared ^= shared >> 4
    shared ^= shared >> 2
    shared ^= shared >> 1
    return (1 - 2 * (shared & 1)).to(tl.float32).to(tl.bfloat16)


@triton.jit
def turned_block(weights, scales, held, block, blocks, SCHEME: tl.constexpr, SCALED: tl.constexpr,
                 BN: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Return 128 turned columns of BN rows: of the first and of the second half of each group.

    Both are float32 [BN, 64], in the order of the columns; ``SCALED`` columns share a scale.
    """
    left = tl.zeros((BN, HALF), tl.float32)
    right = tl.zeros((BN, HALF), tl.float32)
    half: tl.constexpr = SCALED // 2
    fewer: tl.constexpr = 2 if SCHEME == "int2" else 4
    group_bytes: tl.constexpr = SCALED * (3 if SCHEME == "int3" else fewer) // 8
    k = tl.arange(0, half)
    line = held.to(tl.int64)[:, None]
    for group in tl.static_range(GROUP // SCALED):
        if SCHEME == "int8":
            at = weights + line * (blocks * GROUP) + block * GROUP + k[None, :]
            low = unpack_int8(tl.load(at), PLAIN)
            high = unpack_int8(tl.load(at + half), PLAIN)
        else:
            at = weights + ((line * blocks + block) * (GROUP // SCALED) + group) * group_bytes
            scale = tl.load(scales + (held * blocks + block) * (GROUP // SCALED) + group)
            packed = packed_bytes(at, SCHEME, SCALED, True)
            low, high = unpack_four_bit(packed, scale, SCHEME, PLAIN)
        sign = signs(group * half, half, HALF)
        left = dot_16(low, sign, left, PLAIN)
        right = dot_16(high, sign, right, PLAIN)
    first, second = left + right, left - right
    if SCHEME == "int8":
        scale = tl.load(scales + held)[:, None]
        first, second = first * scale, second * scale
    return first, second


@triton.jit
def row_maxima(weights, scales, maxima, rows, blocks, SCHEME: tl.constexpr, SCALED: tl.constexpr,
               BLOCKS: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
               PLAIN: tl.constexpr):  # fmt: skip
    """Write the largest magnitude of BLOCKS turned blocks of BN rows. Program: (chunk, rows).

    Operands:
        weights, scales: As ``widen_four_bit`` takes them, or int8 with float32 [rows].
        maxima: float32 [rows, chunks].
        blocks: K / 128.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    chunk = tl.program_id(0)
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    held = tl.minimum(row, rows - 1)
    largest = tl.zeros((BN,), tl.float32)
    for block in range(chunk * BLOCKS, tl.minimum((chunk + 1) * BLOCKS, blocks)):
        first, second = turned_block(
            weights, scales, held, block, blocks, SCHEME, SCALED, BN, PLAIN
        )
        found = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        largest = tl.maximum(largest, found)
    if PDL:  # whoever reads the maxima before them has ended
        tl.extra.cuda.gdc_wait()
    tl.store(maxima + row * tl.num_programs(0) + chunk, largest, mask=row < rows)


@triton.jit
def turn_rows(weights, scales, maxima, outputs, row_scales, rows, blocks, SCHEME: tl.constexpr,
              SCALED: tl.constexpr, BLOCKS: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
              PLAIN: tl.constexpr):  # fmt: skip
    """Write BLOCKS turned blocks of BN rows as int8, and the rows' scales. Program: (chunk, rows).

    Operands:
        weights, scales: As ``row_maxima`` takes them.
        maxima: What it wrote, by as many chunks.
        outputs: int8 [rows, K].
        row_scales: float32 [rows].
        blocks: K / 128.
    """
    wait_for_inputs(PDL)
    chunk = tl.program_id(0)
    chunks = tl.num_programs(0)
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    held = tl.minimum(row, rows - 1)
    inside = row < rows
    every = tl.arange(0, CHUNKS)[None, :]
    found = tl.load(maxima + held[:, None] * chunks + every, mask=every < chunks, other=0.0)
    largest = tl.max(found, 1)
    if chunk == 0:
        tl.store(row_scales + row, largest / 127.0, mask=inside)
    inverse = (127.0 / tl.where(largest > 0.0, largest, 1.0))[:, None]  # zeros stay zeros
    half: tl.constexpr = SCALED // 2
    k = tl.arange(0, HALF)
    column = (k // half) * SCALED + k % half
    line = outputs + held.to(tl.int64)[:, None] * (blocks * GROUP) + column[None, :]
    for block in range(chunk * BLOCKS, tl.minimum((chunk + 1) * BLOCKS, blocks)):
        first, second = turned_block(
            weights, scales, held, block, blocks, SCHEME, SCALED, BN, PLAIN
        )
        at = line + block * GROUP
        tl.store(at, round_to_even(first * inverse).to(tl.int8), mask=inside[:, None])
        tl.store(at + half, round_to_even(second * inverse).to(tl.int8), mask=inside[:, None])


@triton.jit
def turned_values(line, groups, row_groups, sign, PLAIN: tl.constexpr):
    """Return some groups of a token, turned: float32 [G, 128], zeros behind its end."""
    column = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(line + column, mask=(groups < row_groups)[:, None], other=0.0)
    return dot_16(values, sign, tl.zeros(column.shape, tl.float32), PLAIN)


@triton.jit
def store_codes(line, turned, inverse, groups, row_groups):
    """Write some groups of a token in steps of its scale, int8."""
    column = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    codes = round_to_even(turned * inverse).to(tl.int8)
    tl.store(line + column, codes, mask=(groups < row_groups)[:, None])


@triton.jit
def turn_tokens(values, outputs, scales, tokens, row_groups, GROUPS: tl.constexpr,
                WHOLE: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Write int8 [tokens, K] of turned 16-bit activations, and the scale of each.

    A program takes token after token, since the signs take longer to make than to use. Tokens of
    more than GROUPS groups, without WHOLE, are read twice, the second time from a cache. Scales
    make up for the 128 by which products of what is turned are larger.

    Operands:
        values: bfloat16 [tokens, K].
        outputs: int8 [tokens, K].
        scales: float32 [tokens].
        row_groups: K / 128.
    """
    sign = signs(0, GROUP, GROUP)
    wait_for_inputs(PDL)
    columns = row_groups.to(tl.int64) * GROUP
    group = tl.arange(0, GROUPS)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        line = values + token * columns
        turned = turned_values(line, group, row_groups, sign, PLAIN)
        largest = tl.max(tl.abs(turned), 1)
        if not WHOLE:
            for start in range(GROUPS, row_groups, GROUPS):
                others = turned_values(line, start + group, row_groups, sign, PLAIN)
                largest = tl.maximum(largest, tl.max(tl.abs(others), 1))
        most = tl.max(largest, 0)
        tl.store(scales + token, most / (127.0 * GROUP))
        inverse = 127.0 / tl.where(most > 0.0, most, 1.0)
        target = outputs + token * columns
        store_codes(target, turned, inverse, group, row_groups)
        if not WHOLE:
            for start in range(GROUPS, row_groups, GROUPS):
                others = turned_values(line, start + group, row_groups, sign, PLAIN)
                store_codes(target, others, inverse, start + group, row_groups)
