"""The compiled forms of ``exchange``."""

from __future__ import annotations

from dataclasses import replace

from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.exchange.triton.kernels"
NORM_GROUPS = (16, 32, 64)
"""Groups of 128 columns of rows whose sum and norm are one kernel."""
PART_GROUPS = (1, 4, 8)
"""Groups of a part of a row, where several programs make the norm of one: the first of a row that
is alone, the others of a few."""
FEW_GROUPS, MANY_GROUPS, TWO_GROUPS = 16, 64, 32
"""Groups of a tile of a sum, and of joined rows: of few numbers, of many as pairs, and of a tile
that one rank adds up."""
SLOT_WORDS = ACTIVATION_GROUP * max(FEW_GROUPS, MANY_GROUPS // 2, TWO_GROUPS // 2)
"""Words that a tile sends at most."""

_INBOX = (
    pointer("words", "i32"),
    pointer("offsets", "i64"),
    pointer("state", "i32"),
    pointer("failed", "i32"),
    pointer("broken", "i32", aligned=False),
)
_RANKS = (
    number("rank"),
    number("ranks"),
    number("slot_words", aligned=True),
    number("patience", "i64"),
)
RANK_NORM = Kernel(
    name="exchange.rank_norm",
    module=MODULE,
    function="rank_norm",
    arguments=(
        pointer("residual", "fp32"),
        pointer("added", "fp32"),
        pointer("row_index", "i32"),
        pointer("norm", "fp32"),
        pointer("added_bias", "fp32"),
        pointer("outputs", "i8"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        *_INBOX,
        number("hidden", aligned=True),
        number("added_rows"),
        number("splits"),
        number("rows"),
        number("gathers"),
        number("has_added_bias"),
        *_RANKS,
        number("epsilon", "fp32"),
    ),
)
RANK_NORM_PARTS = replace(
    RANK_NORM,
    name="exchange.rank_norm_parts",
    module="zse.kernels.exchange.triton.few_rows",
    function="rank_norm_parts",
)
_SUM_ARGUMENTS = (
    pointer("added", "fp32"),
    pointer("added_bias", "fp32"),
    *_INBOX,
    number("count", aligned=True),
    number("columns", aligned=True),
    number("split_words", "i64", aligned=True),
    number("splits"),
    number("has_added_bias"),
    *_RANKS,
)
RANK_SUM = Kernel(
    name="exchange.rank_sum", module=MODULE, function="rank_sum", arguments=_SUM_ARGUMENTS
)
RANK_SUM_IN_TWO = Kernel(
    name="exchange.rank_sum_in_two",
    module=MODULE,
    function="rank_sum_in_two",
    arguments=_SUM_ARGUMENTS,
)
RANK_GATHER = Kernel(
    name="exchange.rank_gather",
    module=MODULE,
    function="rank_gather",
    arguments=(
        pointer("part", "fp32"),
        pointer("outputs", "fp32"),
        *_INBOX,
        number("rows"),
        number("part_columns", aligned=True),
        number("own_columns"),
        number("columns"),
        *_RANKS,
    ),
)


def rank_norm_variant(groups: int, *, quantized: bool, narrow: bool) -> Variant:
    """Return the form for rows of ``groups`` groups, which are sent as bfloat16 if ``narrow``."""
    return variant(
        RANK_NORM,
        num_warps=min(groups, 32),
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        NARROW=narrow,
    )


def rank_norm_parts_variant(groups: int, *, quantized: bool) -> Variant:
    """Return the form by which several programs make a row, each ``groups`` groups of it."""
    return variant(
        RANK_NORM_PARTS,
        num_warps=groups,
        types=None if quantized else {"outputs": "*bf16"},
        GROUPS=groups,
        PARTS=NORM_GROUPS[-1] // groups,
    )


def rank_sum_variant(*, narrow: bool) -> Variant:
    """Return the form of few numbers, or of many that are sent as bfloat16."""
    groups = MANY_GROUPS if narrow else FEW_GROUPS
    return variant(RANK_SUM, num_warps=8, GROUPS=groups, NARROW=narrow)


def rank_sum_in_two_variant() -> Variant:
    return variant(RANK_SUM_IN_TWO, num_warps=8, GROUPS=TWO_GROUPS)


def rank_gather_variant() -> Variant:
    return variant(RANK_GATHER, num_warps=8, GROUPS=FEW_GROUPS)


VARIANTS: tuple[Variant, ...] = (
    *(
        rank_norm_variant(groups, quantized=quantized, narrow=narrow)
        for groups in NORM_GROUPS
        for quantized, narrow in ((True, False), (False, False), (False, True))
    ),
    *(
        rank_norm_parts_variant(groups, quantized=quantized)
        for groups in PART_GROUPS
        for quantized in (True, False)
    ),
    rank_sum_variant(narrow=False),
    rank_sum_variant(narrow=True),
    rank_sum_in_two_variant(),
    rank_gather_variant(),
)
