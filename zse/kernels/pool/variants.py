"""The compiled form of ``pool``."""

from __future__ import annotations

from zse.kernels.variant import Kernel, Variant, number, pointer, variant

POOL_ROWS = Kernel(
    name="pool.pool_rows",
    module="zse.kernels.pool.triton.kernel",
    function="pool_rows",
    arguments=(
        pointer("stream", "fp32"),
        pointer("first_rows", "i32"),
        pointer("num_rows", "i32"),
        pointer("outputs", "fp32"),
        number("hidden", aligned=True),
        number("takes_first"),
        number("takes_last"),
    ),
)
BLOCK = 256
"""Columns a program: few, so that the texts of a small step fill a device."""
VARIANTS: tuple[Variant, ...] = (variant(POOL_ROWS, num_warps=2, BLOCK=BLOCK),)
