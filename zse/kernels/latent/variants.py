"""The compiled forms of ``latent``.

All published models keep latents of 512 columns and a key of 64 that turns, and their heads have
128 columns: other widths would be forms of their own.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.rope_store.variants import CACHE
from zse.kernels.variant import Kernel, Variant, number, pointer, variant
from zse.records import record

RANK = 512
"""Columns of a latent."""
TURNING = 64
"""Columns of the key that turns."""
KEY_DIM = 128
"""Columns of a head's query that do not turn."""
VALUE_DIM = ACTIVATION_GROUP
"""Columns of a head's value: a group of 8-bit activations, so any head can be stored alone."""
MOST_QUERY_RANK = 16 * ACTIVATION_GROUP
"""Columns of the widest latent of queries."""
ELEMENTS = {"bf16": "*bf16", "fp16": "*fp16"}
"""Types of what makes heads of a latent, by scheme."""
FEW_ROWS = 16
"""Rows that a program multiplies by a head's matrix: as few as a product takes, or four times as
many."""
MANY_ROWS = 64
COLUMNS = 128
"""Columns of latents that a program makes, reads or joins at a time."""

_MODULE = "zse.kernels.latent.triton"
_KEYS = (CACHE[0], CACHE[2])
"""Latents and the keys that turn, and their scales."""
_SUMMANDS = (number("rows"), number("splits"), number("has_bias"))
STORE = Kernel(
    name="latent.latent_store",
    module=f"{_MODULE}.store",
    function="latent_store",
    arguments=(
        pointer("joined", "fp32"),
        pointer("bias", "fp32"),
        pointer("norm", "fp32"),
        pointer("cosines_sines", "fp32"),
        pointer("positions", "i32"),
        pointer("table_rows", "i32"),
        pointer("tables", "i32"),
        *_KEYS,
        *_SUMMANDS,
        number("has_table_rows"),
        number("table_stride"),
        number("own_columns", aligned=True),
        number("epsilon", "fp32"),
    ),
)
QUERY_NORM = Kernel(
    name="latent.query_norm",
    module=f"{_MODULE}.store",
    function="query_norm",
    arguments=(
        pointer("joined", "fp32"),
        pointer("bias", "fp32"),
        pointer("norm", "fp32"),
        pointer("outputs", "bf16"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        *_SUMMANDS,
        number("columns", aligned=True),
        number("joined_columns", aligned=True),
        number("epsilon", "fp32"),
    ),
)
WIDE_QUERIES = Kernel(
    name="latent.wide_queries",
    module=f"{_MODULE}.heads",
    function="wide_queries",
    arguments=(
        pointer("own", "fp32"),
        pointer("bias", "fp32"),
        pointer("expansion", "bf16"),
        pointer("cosines_sines", "fp32"),
        pointer("positions", "i32"),
        pointer("queries", "bf16"),
        number("rows"),
        number("split_rows"),
        number("splits"),
        number("has_bias"),
        number("own_columns", aligned=True),
        number("num_heads"),
    ),
)
VALUES = Kernel(
    name="latent.latent_values",
    module=f"{_MODULE}.heads",
    function="latent_values",
    arguments=(
        pointer("attended", "bf16"),
        pointer("expansion", "bf16"),
        pointer("outputs", "bf16"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        number("rows"),
        number("num_heads"),
    ),
)
DECODE = Kernel(
    name="latent.latent_decode",
    module=f"{_MODULE}.attend",
    function="latent_decode",
    arguments=(
        pointer("queries", "bf16"),
        *_KEYS,
        pointer("tables", "i32"),
        pointer("positions", "i32"),
        pointer("attended", "fp32"),
        pointer("stats", "fp32"),
        number("num_heads"),
        number("table_stride"),
        number("scale", "fp32"),
    ),
)
JOIN = Kernel(
    name="latent.latent_join",
    module=f"{_MODULE}.attend",
    function="latent_join",
    arguments=(
        pointer("queries", "bf16"),
        pointer("positions", "i32"),
        pointer("attended", "fp32"),
        pointer("stats", "fp32"),
        number("num_heads"),
        number("splits"),
    ),
)
PREFILL = Kernel(
    name="latent.latent_prefill",
    module=f"{_MODULE}.attend",
    function="latent_prefill",
    arguments=(
        pointer("queries", "bf16"),
        *_KEYS,
        pointer("tables", "i32"),
        pointer("tile_first_rows", "i32"),
        pointer("tile_num_rows", "i32"),
        pointer("tile_table_rows", "i32"),
        pointer("tile_first_positions", "i32"),
        number("num_heads"),
        number("table_stride"),
        number("scale", "fp32"),
    ),
)
_WIDTHS: dict[str, Any] = {"RANK": RANK, "TURNING": TURNING}
_HEADS: dict[str, Any] = {"KEY_DIM": KEY_DIM, "VALUE_DIM": VALUE_DIM}


def store_variant(*, quantized: bool) -> Variant:
    return variant(STORE, types=_cache(quantized=quantized), **_WIDTHS)


def query_norm_variant(*, quantized: bool) -> Variant:
    types = {"outputs": "*i8"} if quantized else None
    return variant(QUERY_NORM, types=types, GROUPS=MOST_QUERY_RANK // ACTIVATION_GROUP)


def wide_queries_variant(element: str, *, rows: int) -> Variant:
    """Return the form for matrices of an element, and for so many rows a program."""
    return variant(
        WIDE_QUERIES,
        num_warps=4 if rows == FEW_ROWS else 8,
        types={"expansion": ELEMENTS[element]},
        **_WIDTHS,
        **_HEADS,
        ROWS=rows,
        COLUMNS=COLUMNS,
    )


def values_variant(element: str, *, rows: int, quantized: bool) -> Variant:
    types = {"expansion": ELEMENTS[element]} | ({"outputs": "*i8"} if quantized else {})
    return variant(
        VALUES, types=types, num_stages=3, **_WIDTHS, **_HEADS, ROWS=rows, COLUMNS=COLUMNS // 2
    )


@record
class AttendForm:
    """What one compiled form of the attention is made for."""

    lines: int
    """Queries that a program attends with, each a head of a token."""
    tokens: int
    """Cached tokens that it takes at a time: one or two blocks."""
    quantized: bool
    """Whether the cache is int8."""


FEW_LINES = 16
"""Heads of a decode program where there are no more."""
_NARROW_LINES, _WIDE_LINES = 32, 64
"""Heads of a program otherwise, and queries of one of prompts: what fits the shared memory."""


def attend_form(lines: int, *, narrow: bool, quantized: bool) -> AttendForm:
    """Return the form for so many queries that read the same tokens.

    Args:
        lines: Heads of a token, or queries of a prompt.
        narrow: Whether a multiprocessor has little shared memory.
        quantized: Whether the cache is int8.
    """
    most = _NARROW_LINES if narrow else _WIDE_LINES
    held = FEW_LINES if lines <= FEW_LINES else most
    return AttendForm(lines=held, tokens=32, quantized=quantized)


def decode_variant(form: AttendForm, *, num_warps: int = 0, num_stages: int = 0) -> Variant:
    """Return the form of one token a row; 0 warps, or stages, are as many as there is room for."""
    return variant(
        DECODE,
        num_warps=num_warps or _warps(form),
        num_stages=num_stages or _stages(form),
        types=_cache(quantized=form.quantized),
        **_WIDTHS,
        HEADS=form.lines,
        TOKENS=form.tokens,
    )


def join_variant(form: AttendForm) -> Variant:
    """Return what joins the parts that a decode form leaves."""
    return variant(JOIN, types=None, **_WIDTHS, TOKENS=form.tokens, COLUMNS=COLUMNS, AT_ONCE=16)


def prefill_variant(form: AttendForm, *, num_warps: int = 0, num_stages: int = 0) -> Variant:
    """Return the form of prompts; 0 warps, or stages, are as many as there is room for."""
    return variant(
        PREFILL,
        num_warps=num_warps or _warps(form),
        num_stages=num_stages or _stages(form),
        types=_cache(quantized=form.quantized),
        **_WIDTHS,
        LINES=form.lines,
        TOKENS=form.tokens,
    )


def _warps(form: AttendForm) -> int:
    return 4 if form.lines == FEW_LINES else 8


def _stages(form: AttendForm) -> int:
    """Return how many tiles are on their way; those of int8 stand beside what is made of them."""
    return 1 if form.quantized and form.lines == _NARROW_LINES else 2


def _cache(*, quantized: bool) -> dict[str, str] | None:
    return {"keys": "*i8"} if quantized else None


_EITHER = (False, True)
_DECODE_FORMS = [
    attend_form(lines, narrow=narrow, quantized=quantized)
    for lines, narrow, quantized in product((FEW_LINES, 2 * FEW_LINES), _EITHER, _EITHER)
]
VARIANTS: tuple[Variant, ...] = tuple(
    dict.fromkeys(
        [
            *(store_variant(quantized=quantized) for quantized in _EITHER),
            *(query_norm_variant(quantized=quantized) for quantized in _EITHER),
            *(
                wide_queries_variant(element, rows=rows)
                for element, rows in product(ELEMENTS, (FEW_ROWS, MANY_ROWS))
            ),
            *(decode_variant(form) for form in _DECODE_FORMS),
            *(join_variant(form) for form in _DECODE_FORMS),
            *(prefill_variant(form) for form in _DECODE_FORMS if form.lines > FEW_LINES),
            *(
                values_variant(element, rows=rows, quantized=quantized)
                for element, rows, quantized in product(ELEMENTS, (FEW_ROWS, MANY_ROWS), _EITHER)
            ),
        ]
    )
)
