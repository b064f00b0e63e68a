"""What a CPU keeps of a model in memory. It is asked before anything is loaded, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from zse.units import align_up

if TYPE_CHECKING:
    from zse.models.spec import AttentionSpec, MLPSpec, ModelSpec

KV_ELEMENT_BYTES = {"auto": 2, "fp16": 2, "bf16": 2, "fp32": 4, "int8": 1}
ROWS_AT_ONCE = 256
"""More rows need more memory for what is between operations, and are computed no faster."""
LEAST_GROUP = 32
"""Columns that share a scale of int8 activations, at least."""
_MOST_GROUP = 128
_SCALE_BYTES = 4
_CACHE_LINE = 64


def is_read_whole(spec: ModelSpec, tensor_name: str) -> bool:
    """Whether steps read all of a tensor: of an embedding that is no head, rows of tokens alone."""
    return spec.is_tied or tensor_name != spec.embedding.weight.name


def kv_block_bytes(spec: ModelSpec, block_size: int, kv_dtype: str) -> int:
    """Return the bytes of one KV block over all layers."""
    return kv_layer_bytes(spec, block_size, kv_dtype) * len(spec.layers)


def kv_layer_bytes(spec: ModelSpec, block_size: int, kv_dtype: str) -> int:
    """Return the bytes of one layer of a KV block: heads, the scales of int8 ones, whole lines."""
    attention = spec.attention
    heads = 2 * attention.num_kv_heads * block_size
    scales = heads * _SCALE_BYTES if kv_dtype == "int8" else 0
    return align_up(heads * attention.head_dim * KV_ELEMENT_BYTES[kv_dtype] + scales, _CACHE_LINE)


def register_widths(spec: ModelSpec) -> dict[str, int]:
    """Return how many float32 numbers a row has between operations, for each that is kept."""
    attentions = [cast("AttentionSpec", layer.mixer) for layer in spec.layers]
    mlps = [cast("MLPSpec", layer.mlp) for layer in spec.layers]
    rotary = max((one.rope.rotary_dim for one in attentions if one.rope is not None), default=0)
    return {
        "residual": spec.hidden_size,
        "qkv": max(one.qkv.weight.shape[0] for one in attentions),
        "mixed": max(one.output.weight.shape[1] for one in attentions),
        "joined": max(one.up.weight.shape[0] for one in mlps),
        "hidden": max(one.down.weight.shape[1] for one in mlps),
        "added": spec.hidden_size,
        "normed": spec.hidden_size,
        "rotary": rotary,
        "rotary_other": rotary,
    }


def quantized_columns(spec: ModelSpec) -> int:
    """Return the columns of a row of int8 activations: as many as the widest matrix reads."""
    return align_up(max(weight.shape[-1] for weight in spec.weights()), _MOST_GROUP)


def scratch_bytes(spec: ModelSpec, rows: int) -> int:
    """Return what a step of so many rows of a prompt writes, of which one is sampled."""
    columns = quantized_columns(spec)
    quantized = columns + 2 * _SCALE_BYTES * (columns // LEAST_GROUP)
    floats = sum(register_widths(spec).values())
    return min(rows, ROWS_AT_ONCE) * (4 * floats + quantized) + 4 * spec.vocab_size
