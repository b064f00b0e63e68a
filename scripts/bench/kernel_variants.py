"""More compiled forms than a pack holds, to find the ones that are worth holding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.experts.variants import (
    DIRECT_TILES,
    UNSORTED_PAIRS,
    direct_variant,
    grouped_variant,
    like_gemv,
)
from zse.kernels.linear.definitions import MATMUL_STREAM
from zse.kernels.linear.variants import VARIANTS, dot, gemv, imma, matmul

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

TILES = (
    (4, 4, 8),
    (4, 2, 16),
    (4, 1, 32),
    (2, 4, 8),
    (2, 2, 16),
    (2, 1, 32),
    (8, 4, 8),
    (8, 1, 32),
    (1, 4, 8),
    (2, 4, 16),
    (4, 4, 16),
    (4, 2, 32),
    (2, 2, 32),
    (2, 4, 32),
    (4, 4, 32),
)
FEW_TILES = ((4, 4, 8), (4, 1, 32), (2, 4, 8), (2, 1, 32), (4, 2, 32))
GROUPED_SIZES = (
    (16, 128, 4, 3), (16, 128, 4, 4), (16, 64, 4, 3), (32, 128, 4, 3), (64, 64, 4, 3),
    (64, 128, 4, 3), (64, 128, 4, 4), (64, 128, 8, 3), (128, 128, 4, 3), (128, 128, 8, 3),
    (128, 128, 8, 2), (128, 256, 8, 3), (256, 128, 8, 3),
)  # fmt: skip
"""Pairs, rows of the matrix, warps, stages."""
DIRECT_SIZES = (
    (8, 128, 4, 1), (8, 128, 4, 2), (8, 64, 4, 2), (8, 128, 8, 2), (8, 64, 2, 2),
    (16, 128, 4, 1), (16, 128, 4, 2), (16, 64, 4, 2), (16, 128, 8, 1),
    (32, 128, 4, 1), (32, 64, 4, 1), (32, 128, 8, 1),
)  # fmt: skip
"""Pairs, rows of the matrix, warps, blocks on their way."""
PAIR_SIZES = (
    (4, 4, 8), (4, 2, 32), (4, 2, 16), (4, 4, 16), (4, 4, 32), (4, 1, 32), (2, 4, 16), (2, 4, 32),
    (2, 2, 32), (8, 1, 32),
)  # fmt: skip
"""Rows of a thread, threads along the rows and along the columns."""


def decode_sweep(scheme: str, group: int, rows: int) -> list[Variant]:
    tiles = TILES if (scheme, group, rows) == ("int4", 128, 1) else FEW_TILES
    return [gemv(scheme, group, rows, r=r, t=t, c=c) for r, t, c in tiles]


def imma_sweep(scheme: str, group: int, rows: int) -> list[Variant]:
    bm = 8 if rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64
    tiles = [(64, bm, 4), (128, bm, 4)]
    if bm == 8:
        tiles += [(64, 16, 4), (128, 16, 4)]
    if bm == 64:
        tiles += [(128, bm, 3), (64, 32, 4)]
    return [imma(scheme, group, bn=bn, bm=m, stages=stages) for bn, m, stages in tiles]


def dot_sweep(scheme: str, group: int, rows: int) -> list[Variant]:
    if rows <= 16:
        return [dot(scheme, group, bn=bn, bm=16, stages=s) for bn in (64, 128) for s in (3, 4)]
    if rows <= 32:
        return [dot(scheme, group, bn=bn, bm=32, stages=4) for bn in (64, 128)]
    if rows <= 64:
        return [dot(scheme, group, bn=bn, bm=64, stages=3) for bn in (64, 128)]
    return [
        dot(scheme, group, bn=64, bm=128, stages=3),
        dot(scheme, group, bn=128, bm=128, warps=8, stages=3),
        dot(scheme, group, bn=128, bm=128, warps=4, stages=3),
        dot(scheme, group, bn=128, bm=64, warps=8, stages=3),
    ]


def matmul_sweep(outputs: str) -> list[Variant]:
    stream = [
        matmul("bf16", outputs, even=True, bn=bn, stages=stages, kernel=MATMUL_STREAM)
        for bn, stages in ((128, 4), (256, 3))
    ]
    return [matmul("bf16", outputs, even=True), *stream]


def everything() -> tuple[Variant, ...]:
    """Return every form that the sweep times or the product has."""
    found: list[Variant] = []
    for rows in (1, 2, 4):
        found += decode_sweep("int4", 128, rows)
    for scheme, group in (("int4", 64), ("nf4", 64), ("int8", 0), ("bf16", 0)):
        found += decode_sweep(scheme, group, 1)
    for rows in (8, 16, 32, 64):
        found += imma_sweep("int4", 128, rows)
    for rows in (16, 32, 64, 128):
        found += dot_sweep("int4", 128, rows)
    found += matmul_sweep("bf16") + matmul_sweep("fp32")
    return tuple(dict.fromkeys([*found, *VARIANTS]))


def grouped_sweep(scheme: str, group: int) -> list[Variant]:
    return [
        grouped_variant(scheme, group, bm=bm, bn=bn, warps=warps, stages=stages)
        for bm, bn, warps, stages in GROUPED_SIZES
    ]


def direct_sweep(scheme: str) -> list[Variant]:
    return [
        direct_variant(scheme, bn=bn, bm=bm, depth=depth, warps=warps, pairs=pairs)
        for bm, bn, warps, depth in DIRECT_SIZES
        for pairs in ((0, UNSORTED_PAIRS) if bm == DIRECT_TILES[0] else (0,))
    ]


def pair_sweep(scheme: str, group: int) -> list[Variant]:
    return [
        like_gemv(scheme, group, gemv(scheme, group, 1, r=r, t=t, c=c)) for r, t, c in PAIR_SIZES
    ]
