"""The compiled forms of ``pool``."""

from __future__ import annotations

from zse.kernels.layout import ACTIVATION_GROUP
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
SCORE_TEXTS = Kernel(
    name="pool.score_texts",
    module="zse.kernels.pool.triton.score",
    function="score_texts",
    arguments=(
        pointer("sums", "fp32"),
        pointer("dense_bias", "fp32"),
        pointer("norm", "fp32"),
        pointer("norm_bias", "fp32"),
        pointer("weights", "bf16"),
        pointer("bias", "fp32"),
        pointer("outputs", "fp32"),
        number("rows"),
        number("splits"),
        number("has_dense_bias"),
        number("hidden", aligned=True),
        number("is_tanh"),
        number("has_norm"),
        number("is_layer_norm"),
        number("has_norm_bias"),
        number("labels"),
        number("epsilon", "fp32"),
    ),
)
BLOCK = 256
"""Columns a program: few, so that the texts of a small step fill a device."""
ELEMENTS = {"bf16": "*bf16", "fp16": "*fp16"}
"""Types of the rows of a classifier, by scheme."""
MOST_SCORED_COLUMNS = 2048
"""Columns of the widest texts that are scored."""


def pool_variant() -> Variant:
    return variant(POOL_ROWS, num_warps=2, BLOCK=BLOCK)


def score_variant(element: str) -> Variant:
    """Return the form for rows of a classifier in 16 bits."""
    groups = MOST_SCORED_COLUMNS // ACTIVATION_GROUP
    return variant(SCORE_TEXTS, types={"weights": ELEMENTS[element]}, GROUPS=groups)


VARIANTS: tuple[Variant, ...] = (pool_variant(), *map(score_variant, ELEMENTS))
