"""The functions of ``attention`` and what they take."""

from __future__ import annotations

from zse.kernels.rope_store.variants import CACHE, FAMILY_HEADS, HEAD_INPUTS
from zse.kernels.variant import Kernel, number, pointer

_DECODE_MODULE = "zse.kernels.attention.triton.decode"
_WIDE_MODULE = "zse.kernels.attention.triton.decode_wide"
_PREFILL_MODULE = "zse.kernels.attention.triton.prefill"
_CONTEXT_MODULE = "zse.kernels.attention.triton.context"
_APART_MODULE = "zse.kernels.attention.triton.context_apart"
_RULES = (
    number("table_stride"),
    number("num_heads"),
    number("kv_heads"),
    number("window"),
    number("softcap", "fp32"),
    number("scale", "fp32"),
)
_DECODE_ADDRESSES = (
    *HEAD_INPUTS,
    pointer("tables", "i32"),
    *CACHE,
    pointer("outputs", "bf16"),
    pointer("output_scales", "fp32"),
    pointer("output_sums", "fp32"),
    pointer("partials", "fp32"),
    pointer("stats", "fp32"),
    pointer("counters", "i32"),
)
_DECODE_NUMBERS = (
    number("rows"),
    number("qkv_splits"),
    number("has_bias"),
    number("has_factors"),
    *_RULES,
    number("epsilon", "fp32"),
    number("early"),
)
_PREFILL_ADDRESSES = (
    pointer("queries", "bf16"),
    *CACHE,
    pointer("tables", "i32"),
    pointer("tile_first_rows", "i32"),
    pointer("tile_num_rows", "i32"),
    pointer("tile_table_rows", "i32"),
    pointer("tile_first_positions", "i32"),
    pointer("outputs", "bf16"),
)
DECODE = Kernel(
    name="attention.decode",
    module=_DECODE_MODULE,
    function="attention_decode",
    arguments=(*_DECODE_ADDRESSES, *_DECODE_NUMBERS),
)
FAMILY_DECODE = Kernel(
    name="attention.family_decode",
    module=_DECODE_MODULE,
    function="family_decode",
    arguments=(
        *_DECODE_ADDRESSES,
        pointer("sinks", "fp32"),
        *_DECODE_NUMBERS,
        *FAMILY_HEADS,
        number("value_epsilon", "fp32"),
        number("has_gates"),
        number("has_sinks"),
    ),
)
WIDE_DECODE = Kernel(
    name="attention.decode_wide",
    module=_WIDE_MODULE,
    function="attention_decode_wide",
    arguments=(
        pointer("queries", "bf16"),
        pointer("positions", "i32"),
        pointer("tables", "i32"),
        pointer("keys", "i8"),
        pointer("values", "i32"),
        pointer("key_scales", "fp16"),
        pointer("value_scales", "u16"),
        pointer("outputs", "bf16"),
        pointer("output_scales", "fp32"),
        pointer("output_sums", "fp32"),
        number("table_stride"),
        number("num_heads"),
        number("kv_heads"),
        number("window"),
        number("scale", "fp32"),
    ),
    targets=("sm_90",),
)
PREFILL = Kernel(
    name="attention.prefill",
    module=_PREFILL_MODULE,
    function="attention_prefill",
    arguments=(*_PREFILL_ADDRESSES, *_RULES),
)
SINK_PREFILL = Kernel(
    name="attention.sink_prefill",
    module=_PREFILL_MODULE,
    function="sink_prefill",
    arguments=(*_PREFILL_ADDRESSES, pointer("sinks", "fp32"), *_RULES),
)
TEXT_PREFILL = Kernel(
    name="attention.text_prefill",
    module=_PREFILL_MODULE,
    function="text_prefill",
    arguments=(*_PREFILL_ADDRESSES, pointer("tile_ends", "i32"), *_RULES),
)
GATHER_CONTEXT = Kernel(
    name="attention.gather_context",
    module=_CONTEXT_MODULE,
    function="gather_context",
    arguments=(
        *CACHE,
        pointer("blocks", "i32"),
        pointer("wide_keys", "bf16"),
        pointer("wide_values", "bf16"),
        number("num_blocks"),
        number("kv_heads"),
    ),
)
CONTEXT_PREFILL = Kernel(
    name="attention.context_prefill",
    module=_CONTEXT_MODULE,
    function="context_prefill",
    arguments=(
        pointer("queries", "bf16"),
        pointer("wide_keys", "bf16"),
        pointer("wide_values", "bf16"),
        pointer("tile_first_rows", "i32"),
        pointer("tile_num_rows", "i32"),
        pointer("tile_first_positions", "i32"),
        pointer("tile_lines", "i32"),
        pointer("outputs", "bf16"),
        number("num_lines", aligned=True),
        number("num_heads"),
        number("kv_heads"),
        number("scale", "fp32"),
    ),
)
CONTEXT_APART = Kernel(
    name="attention.context_apart",
    module=_APART_MODULE,
    function="context_prefill",
    arguments=CONTEXT_PREFILL.arguments,
    targets=("sm_90",),
)
OUTPUT_GATE = Kernel(
    name="attention.output_gate",
    module=_PREFILL_MODULE,
    function="output_gate",
    arguments=(
        pointer("qkv", "fp32"),
        pointer("bias", "fp32"),
        pointer("outputs", "bf16"),
        number("rows"),
        number("splits"),
        number("has_bias"),
        number("joined_columns", aligned=True),
        number("query_columns", aligned=True),
    ),
)
