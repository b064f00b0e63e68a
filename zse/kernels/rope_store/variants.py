"""The compiled forms of ``rope_table`` and ``rope_store``."""

from __future__ import annotations

from zse.kernels.layout import (
    CACHE_POINTERS,
    CACHES_OF_WIDTHS,
    FAMILY_HEAD_DIMS,
    HEAD_DIMS,
    TEXT_HEAD_DIMS,
    CacheDtype,
    padded,
)
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

MODULE = "zse.kernels.rope_store.triton.kernel"
TABLE_BLOCK = 4
"""Positions a program of ``rope_table``."""
HEADS = 8
"""Heads a program of ``rope_store``."""

HEAD_INPUTS = (
    pointer("qkv", "fp32"),
    pointer("bias", "fp32"),
    pointer("q_norm", "fp32"),
    pointer("k_norm", "fp32"),
    pointer("key_factors", "fp32"),
    pointer("cosines_sines", "fp32"),
    pointer("positions", "i32"),
)
"""``layout.HeadInputs.addresses``."""
CACHE = (
    pointer("keys", "bf16"),
    pointer("values", "bf16"),
    pointer("key_scales", "fp16"),
    pointer("value_scales", "fp16"),
)
"""``layout.PagedCache.addresses``."""
ROPE_TABLE = Kernel(
    name="rope_store.rope_table",
    module=MODULE,
    function="rope_table",
    arguments=(
        pointer("inverse_frequencies", "fp32"),
        pointer("table", "fp32"),
        number("num_positions"),
        number("factor", "fp32"),
    ),
)
ROPE_STORE = Kernel(
    name="rope_store.rope_store",
    module=MODULE,
    function="rope_store",
    arguments=(
        *HEAD_INPUTS,
        pointer("table_rows", "i32"),
        pointer("tables", "i32"),
        pointer("queries", "bf16"),
        *CACHE,
        number("rows"),
        number("splits"),
        number("has_bias"),
        number("has_factors"),
        number("table_stride"),
        number("num_heads"),
        number("kv_heads"),
        number("epsilon", "fp32"),
    ),
)
ANY_ROPE_TABLE = Kernel(
    name="rope_store.any_rope_table",
    module=MODULE,
    function="any_rope_table",
    arguments=(
        pointer("inverse_frequencies", "fp32"),
        pointer("table", "fp32"),
        number("num_positions"),
        number("half"),
        number("factor", "fp32"),
    ),
)
FAMILY_HEADS = (
    number("joined_heads"),
    number("first_key"),
    number("first_value"),
    number("stores"),
    number("rotary_half"),
    number("norms_values"),
)
"""``layout.HeadShape.numbers``, and what of ``layout.HeadInputs`` only some families have."""
FAMILY_ROPE_STORE = Kernel(
    name="rope_store.family_rope_store",
    module="zse.kernels.rope_store.triton.family",
    function="family_rope_store",
    arguments=(
        *ROPE_STORE.arguments[:-1],
        *FAMILY_HEADS,
        number("epsilon", "fp32"),
        number("value_epsilon", "fp32"),
    ),
)
MOST_ROTARY_DIM = 512


def any_rope_table_variant() -> Variant:
    """Return the form for widths that no head has as a whole."""
    return variant(ANY_ROPE_TABLE, HALF_PAD=MOST_ROTARY_DIM // 2, BLOCK=TABLE_BLOCK)


def rope_table_variant(head_dim: int) -> Variant:
    half = head_dim // 2
    return variant(ROPE_TABLE, HALF=half, HALF_PAD=padded(half), BLOCK=TABLE_BLOCK)


def rope_store_variant(head_dim: int, *, cache: CacheDtype, head_norm: bool) -> Variant:
    """Return the form that writes a type of cache."""
    return variant(
        ROPE_STORE,
        types=CACHE_POINTERS[cache],
        HEAD_DIM=head_dim,
        HALF_PAD=padded(head_dim // 2),
        HEADS=HEADS,
        HEAD_NORM=head_norm,
    )


def family_rope_store_variant(head_dim: int, *, cache: CacheDtype, head_norm: bool) -> Variant:
    """Return the form for heads that are not simply q, k and v, turned as a whole."""
    return variant(
        FAMILY_ROPE_STORE,
        types=CACHE_POINTERS[cache],
        HEAD_DIM=head_dim,
        HALF_PAD=padded(head_dim // 2),
        HEADS=HEADS,
        HEAD_NORM=head_norm,
    )


VARIANTS: tuple[Variant, ...] = (
    *(rope_table_variant(head_dim) for head_dim in HEAD_DIMS),
    any_rope_table_variant(),
    *(
        family_rope_store_variant(head_dim, cache=cache, head_norm=head_norm)
        for cache, widths in CACHES_OF_WIDTHS.items()
        for head_dim in FAMILY_HEAD_DIMS
        for head_norm in (False, True)
        if head_dim in widths
    ),
    *(
        family_rope_store_variant(head_dim, cache="bf16", head_norm=False)
        for head_dim in TEXT_HEAD_DIMS
        if head_dim not in FAMILY_HEAD_DIMS
    ),
    *(
        rope_store_variant(head_dim, cache=cache, head_norm=head_norm)
        for cache, widths in CACHES_OF_WIDTHS.items()
        for head_dim in HEAD_DIMS
        for head_norm in (False, True)
        if head_dim in widths
    ),
)
