"""The compiled forms of ``shrink`` and ``expand``, and how an adapter lies in memory for them."""

from __future__ import annotations

from zse.kernels.layout import ADAPTER_PROMPT_ROWS, ADAPTER_ROWS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.low_rank.triton.kernel"
PAIRS_MODULE = "zse.kernels.low_rank.triton.pairs"
_ADAPTERS = (
    pointer("tile_rows", "i32"),
    pointer("tile_places", "i32"),
    pointer("memory", "i64"),
)

SHRINK = Kernel(
    name="low_rank.shrink",
    module=MODULE,
    function="shrink",
    arguments=(
        pointer("inputs", "bf16"),
        pointer("scales", "fp32"),
        *_ADAPTERS,
        pointer("products", "fp32"),
        number("first_record"),
        number("columns", aligned=True),
        number("chunk", aligned=True),
        number("most_rank", aligned=True),
    ),
)
EXPAND = Kernel(
    name="low_rank.expand",
    module=MODULE,
    function="expand",
    arguments=(
        pointer("products", "fp32"),
        *_ADAPTERS,
        pointer("starts", "i32", aligned=False),
        pointer("outputs", "fp32"),
        number("first_record"),
        number("columns", aligned=True),
        number("splits"),
        number("most_rank", aligned=True),
    ),
)
SHRINK_PAIRS = Kernel(
    name="low_rank.shrink_pairs",
    module=PAIRS_MODULE,
    function="shrink_pairs",
    arguments=(
        pointer("inputs", "bf16"),
        pointer("scales", "fp32"),
        *_ADAPTERS,
        pointer("experts", "i32"),
        pointer("products", "fp32"),
        number("first_record"),
        number("columns", aligned=True),
        number("most_rank", aligned=True),
        number("slots"),
        number("has_pairs"),
    ),
)
EXPAND_PAIRS = Kernel(
    name="low_rank.expand_pairs",
    module=PAIRS_MODULE,
    function="expand_pairs",
    arguments=(
        pointer("products", "fp32"),
        *_ADAPTERS,
        pointer("experts", "i32"),
        pointer("pair_weights", "fp32"),
        pointer("starts", "i32", aligned=False),
        pointer("outputs", "fp32"),
        number("first_record"),
        number("columns", aligned=True),
        number("most_rank", aligned=True),
        number("slots"),
        number("row_lines"),
        number("slot_lines"),
        number("is_weighted"),
    ),
)
RANKS = 16
"""Ranks that a program of ``shrink`` computes, and that ``expand`` adds at once."""
COLUMNS = 64
"""Columns of the result that a program of ``expand`` adds to."""
STEP_COLUMNS = 128
"""Columns of the inputs that are taken at once: a group of int8 activations."""
RECORD_NUMBERS = 4
"""Numbers of a record, which says where one part of a matrix has its adapter, int64: the first of
its two matrices and the second, in pieces from the start of all; its rank, in pieces; its scale,
the bits of a float32."""
PIECE = 8
"""Numbers of 16 bits that lie together: ranks and starts of matrices are multiples of it."""
PLACE_BYTES = 256
"""Adapters start at multiples of it, at their records, and are named by these multiples."""


def shrink_variant(*, many: bool, quantized: bool) -> Variant:
    """Return the form for tiles of few rows or of many; only few have int8 activations."""
    return variant(
        SHRINK,
        num_warps=4,
        num_stages=3,
        types={"inputs": "*i8"} if quantized else {},
        ROWS=ADAPTER_PROMPT_ROWS if many else ADAPTER_ROWS,
        RANKS=RANKS,
        STEP=STEP_COLUMNS,
    )


def expand_variant(*, many: bool, element: str) -> Variant:
    """Return the form that adds to ``fp32`` or ``bf16``, for tiles of few rows or of many."""
    return variant(
        EXPAND,
        num_warps=4,
        types={} if element == "fp32" else {"outputs": f"*{element}"},
        ROWS=ADAPTER_PROMPT_ROWS if many else ADAPTER_ROWS,
        COLUMNS=COLUMNS,
        RANKS=RANKS,
    )


def shrink_pairs_variant(*, many: bool, quantized: bool) -> Variant:
    """Return the form of ``shrink`` for pairs of rows and experts."""
    return variant(
        SHRINK_PAIRS,
        num_warps=4,
        types={"inputs": "*i8"} if quantized else {},
        ROWS=ADAPTER_PROMPT_ROWS if many else ADAPTER_ROWS,
        RANKS=RANKS,
        STEP=STEP_COLUMNS,
    )


def expand_pairs_variant(*, many: bool, element: str) -> Variant:
    """Return the form of ``expand`` for pairs of rows and experts."""
    return variant(
        EXPAND_PAIRS,
        num_warps=4,
        types={} if element == "fp32" else {"outputs": f"*{element}"},
        ROWS=ADAPTER_PROMPT_ROWS if many else ADAPTER_ROWS,
        COLUMNS=COLUMNS,
        RANKS=RANKS,
    )


VARIANTS: tuple[Variant, ...] = (
    shrink_pairs_variant(many=False, quantized=True),
    shrink_pairs_variant(many=False, quantized=False),
    shrink_pairs_variant(many=True, quantized=False),
    *(
        expand_pairs_variant(many=many, element=element)
        for many in (False, True)
        for element in ("fp32", "bf16")
    ),
    shrink_variant(many=False, quantized=True),
    shrink_variant(many=False, quantized=False),
    shrink_variant(many=True, quantized=False),
    *(
        expand_variant(many=many, element=element)
        for many in (False, True)
        for element in ("fp32", "bf16")
    ),
)
