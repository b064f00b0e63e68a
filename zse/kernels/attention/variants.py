"""The compiled forms of ``attention_decode`` and ``attention_prefill``."""

from __future__ import annotations

from dataclasses import dataclass

from zse.kernels.rope_store.variants import HEAD_DIMS, INT8_HEAD_DIMS, padded
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

DECODE = Kernel(
    name="attention.decode",
    module="zse.kernels.attention.triton_decode",
    function="attention_decode",
    arguments=(
        pointer("qkv", "fp32"),
        pointer("bias", "fp32"),
        pointer("q_norm", "fp32"),
        pointer("k_norm", "fp32"),
        pointer("cosines_sines", "fp32"),
        pointer("positions", "i32"),
        pointer("tables", "i32"),
        pointer("keys", "bf16"),
        pointer("values", "bf16"),
        pointer("key_scales", "fp16"),
        pointer("value_scales", "fp16"),
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
    module="zse.kernels.attention.triton_prefill",
    function="attention_prefill",
    arguments=(
        pointer("queries", "bf16"),
        pointer("keys", "bf16"),
        pointer("values", "bf16"),
        pointer("key_scales", "fp16"),
        pointer("value_scales", "fp16"),
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
KERNELS = (DECODE, PREFILL)
MAX_GROUP = 32
"""Query heads that may share a key-value head."""
INT8_OUTPUT_HEAD_DIMS = (64, 128, 256)
"""Head widths that make whole groups of 128 columns with a power of two of heads."""


@dataclass(frozen=True, kw_only=True)
class DecodeForm:
    """What one compiled form of the decode attention is made for."""

    head_dim: int
    group: int
    """Query heads that share a key-value head."""
    quantized_cache: bool = False
    quantized_output: bool = False
    head_norm: bool = False
    softcap: bool = False
    tile: int = 32
    """Tokens that a program takes at a time."""


def decode_variant(form: DecodeForm, *, num_warps: int = 4, num_stages: int = 3) -> Variant:
    """Return the compiled form."""
    types = {}
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
        HEADS=max(16, padded(form.group)),
        ROWS=max(8, padded(form.group)),
        TILE=form.tile,
        AT_ONCE=8,
        HEAD_NORM=form.head_norm,
        SOFTCAP=form.softcap,
    )


@dataclass(frozen=True, kw_only=True)
class PrefillForm:
    """What one compiled form of the prefill attention is made for."""

    head_dim: int
    quantized_cache: bool = False
    window: bool = False
    softcap: bool = False
    queries: int = 128
    """Tokens that a program attends with."""
    tokens: int = 64
    """Cached tokens that it takes at a time."""


def prefill_queries(head_dim: int) -> int:
    """Return how many tokens a tile holds."""
    return 128 if head_dim <= 128 else 64


def prefill_form(
    head_dim: int,
    capability: tuple[int, int],
    *,
    quantized_cache: bool,
    window: bool,
    softcap: bool,
) -> PrefillForm:
    """Return the form for a device: what fits its registers and its shared memory."""
    wide = capability[0] >= 9 and head_dim <= 128
    return PrefillForm(
        head_dim=head_dim,
        quantized_cache=quantized_cache,
        window=window,
        softcap=softcap,
        queries=prefill_queries(head_dim),
        tokens=64 if wide or head_dim <= 64 else 32,
    )


def prefill_variant(form: PrefillForm, *, num_warps: int = 8, num_stages: int = 3) -> Variant:
    """Return the compiled form."""
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


VARIANTS: tuple[Variant, ...] = tuple(
    decode_variant(
        DecodeForm(
            head_dim=head_dim,
            group=group,
            quantized_cache=quantized_cache,
            quantized_output=quantized_output,
            head_norm=head_norm,
        )
    )
    for head_dim in HEAD_DIMS
    for group in (8, 16)
    for quantized_cache in (False, True)
    for quantized_output in (False, True)
    for head_norm in (False, True)
    if head_dim in INT8_HEAD_DIMS or not quantized_cache
    if head_dim in INT8_OUTPUT_HEAD_DIMS or not quantized_output
)
