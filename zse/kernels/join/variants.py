"""The compiled forms of ``join``."""

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
ADD_BENT = Kernel(
    name="join.add_bent",
    module="zse.kernels.join.triton.bend",
    function="add_bent",
    arguments=(
        pointer("stream", "fp32"),
        pointer("sums", "fp32"),
        pointer("bias", "fp32"),
        number("rows"),
        number("splits"),
        number("hidden", aligned=True),
    ),
)
BLOCK = 1024
"""Columns that a program treats at once."""
BENT_COLUMNS = 256
"""Columns of a program that adds what is bent."""


def join_variant() -> Variant:
    return variant(JOIN_ROWS, BLOCK=BLOCK)


def bend_variant() -> Variant:
    return variant(ADD_BENT, BLOCK=BENT_COLUMNS)


VARIANTS: tuple[Variant, ...] = (join_variant(), bend_variant())
"""The kernels of ``join``."""
