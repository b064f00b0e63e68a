"""The compiled form of ``join``."""

from __future__ import annotations

from zse.kernels.variant import Kernel, Variant, number, pointer, variant

JOIN_ROWS = Kernel(
    name="join.join_rows",
    module="zse.kernels.join.triton.kernel",
    function="join_rows",
    arguments=(
        pointer("stream", "fp32"),
        pointer("states", "fp32"),
        pointer("embedding_norm", "fp32"),
        pointer("state_norm", "fp32"),
        pointer("outputs", "bf16"),
        number("hidden", aligned=True),
        number("embedding_epsilon", "fp32"),
        number("state_epsilon", "fp32"),
    ),
)
BLOCK = 1024
"""Columns that a program treats at once."""


def join_variant() -> Variant:
    return variant(JOIN_ROWS, BLOCK=BLOCK)


VARIANTS: tuple[Variant, ...] = (join_variant(),)
"""The kernel of ``join``."""
