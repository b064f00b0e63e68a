"""The compiled forms of ``attention_decode`` and ``attention_prefill``."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from zse.kernels.layout import HEAD_DIMS, INT8_HEAD_DIMS, padded
from zse.kernels.rope_store.variants import CACHE, HEAD_INPUTS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODE = Kernel(
    name="attention.decode",
    module="zse.kernels.attention.triton.decode",
    function="attention_decode",
    arguments=(
        *HEAD_INPUTS,
        pointer("tables", "i32"),
        *CACHE,
        pointer("outputs", "bf16"),
        pointer("output_scales", "fp32"),
        pointer("output_sums", "fp32"),
        pointer("partials", "fp32"),
        pointer("stats", "fp32"),
        pointer("counters", "i32"),
        number("rows"),
        number("qkv_splits"),
        number("has_bias"),
        number("table_stride"),
        number("num_heads"),
        number("kv_heads"),
        number("window"),
        number("softcap", "fp32"),
        number("scale", "fp32"),
        number("epsilon", "fp32"),
    ),
)
PREFILL = Kernel(
    name="attention.prefill",
    module="zse.kernels.attention.triton.prefill",
    function="attention_prefill",
    arguments=(
        pointer("queries", "bf16"),
        *CACHE,
        pointer("tables", "i32"),
        pointer("tile_first_rows", "i32"),
        pointer("tile_num_rows", "i32"),
        pointer("tile_table_rows", "i32"),
        pointer("tile_first_positions", "i32"),
        pointer("outputs", "bf16"),
        number("table_stride"),
        number("num_heads"),
        number("kv_heads"),
        number("window"),
        number("softcap", "fp32"),
        number("scale", "fp32"),
    ),
)
MAX_GROUP = 16
"""Query heads that may share a key-value head."""
INT8_OUTPUT_HEAD_DIMS = INT8_HEAD_DIMS
"""Head widths that make whole groups of 128 columns with a power of two of heads."""
SOFTCAP_HEAD_DIMS = (128, 256)
PREFILL_QUERIES = 64
"""Tokens of a query tile: on an H200 a fifth faster than 128, as two programs share a processor."""

NARROW_TARGETS = ("sm_80", "sm_86", "sm_87", "sm_89")
"""Architectures on which a prefill program of wide heads takes half as many tokens at a time."""


@record
class DecodeForm:
    """What one compiled form of the decode attention is made for."""

    head_dim: int
    heads: int = 8
    """Most query heads that share a key-value head: 8 or 16."""
    quantized_cache: bool = False
    quantized_output: bool = False
    head_norm: bool = False
    softcap: bool = False


def decode_tile(head_dim: int) -> int:
    """Return how many tokens a program takes at a time."""
    return 64 if head_dim <= 128 else 32


def decode_variant(
    form: DecodeForm, *, tile: int = 0, num_warps: int = 4, num_stages: int = 2
) -> Variant:
    """Return the compiled form; a ``tile`` of 0 tokens means ``decode_tile``."""
    types: dict[str, str] = {}
    if form.quantized_cache:
        types |= {"keys": "*i8", "values": "*i8"}
    if form.quantized_output:
        types["outputs"] = "*i8"
    width = padded(form.head_dim)
    return variant(
        DECODE,
        num_warps=num_warps,
        num_stages=num_stages,
        types=types,
        HEAD_DIM=form.head_dim,
        HALF_PAD=width // 2,
        WIDTH=width,
        HEADS=16,  # the least that a product takes
        ROWS=form.heads,
        TILE=tile or decode_tile(form.head_dim),
        AT_ONCE=8,
        HEAD_NORM=form.head_norm,
        SOFTCAP=form.softcap,
    )


@record
class PrefillForm:
    """What one compiled form of the prefill attention is made for."""

    head_dim: int
    quantized_cache: bool = False
    window: bool = False
    softcap: bool = False
    queries: int = PREFILL_QUERIES
    """Tokens that a program attends with."""
    tokens: int = 64
    """Cached tokens that it takes at a time."""


def prefill_form(
    head_dim: int, target: str, *, quantized_cache: bool, window: bool, softcap: bool
) -> PrefillForm:
    """Return the form for an architecture: what fits its registers and its shared memory."""
    wide = target not in NARROW_TARGETS and head_dim <= 128
    return PrefillForm(
        head_dim=head_dim,
        quantized_cache=quantized_cache,
        window=window,
        softcap=softcap,
        tokens=64 if wide or head_dim <= 64 else 32,
    )


def prefill_variant(form: PrefillForm, *, num_warps: int = 4, num_stages: int = 2) -> Variant:
    return variant(
        PREFILL,
        num_warps=num_warps,
        num_stages=num_stages,
        types={"keys": "*i8", "values": "*i8"} if form.quantized_cache else None,
        HEAD_DIM=form.head_dim,
        WIDTH=padded(form.head_dim),
        QUERIES=form.queries,
        TOKENS=form.tokens,
        WINDOW=form.window,
        SOFTCAP=form.softcap,
    )


def _decode_forms() -> Iterator[DecodeForm]:
    for head_dim, cache, output, norm in product(HEAD_DIMS, _EITHER, _EITHER, _EITHER):
        if head_dim not in INT8_HEAD_DIMS and (cache or output):
            continue
        for heads in (8, 16) if head_dim == 128 else (8,):
            yield DecodeForm(
                head_dim=head_dim,
                heads=heads,
                quantized_cache=cache,
                quantized_output=output,
                head_norm=norm,
            )
    for head_dim in SOFTCAP_HEAD_DIMS:
        yield DecodeForm(head_dim=head_dim, softcap=True)


def _prefill_forms() -> Iterator[PrefillForm]:
    for head_dim, cache, window, softcap in product(HEAD_DIMS, _EITHER, _EITHER, _EITHER):
        if cache and (softcap or head_dim not in INT8_HEAD_DIMS):
            continue
        if softcap and head_dim not in SOFTCAP_HEAD_DIMS:
            continue
        for target in ("sm_80", "sm_90"):
            yield prefill_form(
                head_dim, target, quantized_cache=cache, window=window, softcap=softcap
            )


_EITHER = (False, True)
DECODE_FORMS = frozenset(_decode_forms())
PREFILL_FORMS = frozenset(_prefill_forms())
VARIANTS: tuple[Variant, ...] = (
    *(decode_variant(form) for form in sorted(DECODE_FORMS, key=str) if not form.softcap),
    *(prefill_variant(form) for form in sorted(PREFILL_FORMS, key=str) if not form.softcap),
)
"""What goes into a kernel pack: no family caps its scores."""
