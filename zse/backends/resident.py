"""What a CPU keeps of a model in memory. It is asked before anything is loaded, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.units import align_up

if TYPE_CHECKING:
    from zse.models.layer_spec import AttentionSpec, ExpertsSpec
    from zse.models.spec import ModelSpec

KV_ELEMENT_BITS = {"auto": 16, "fp16": 16, "bf16": 16, "fp32": 32, "int8": 8, "int4": 4}
ROWS_AT_ONCE = 256
"""More rows need more memory for what is between operations, and are computed no faster."""
LEAST_GROUP = 32
"""Columns that share a scale of int8 activations, at least."""
CHOICE_WORDS = 3
"""Numbers of 32 bits that say which expert a row goes through, and which rows an expert has."""
KV_SCALE_COLUMNS = 32
"""Columns of a key or a value that share a scale where they are kept as whole numbers."""
_KV_SCALE_BYTES = 2
_MOST_GROUP = 128
_SCALE_BYTES = 4
_CACHE_LINE = 64


def is_read_whole(spec: ModelSpec, tensor_name: str) -> bool:
    """Whether steps read all of a tensor, not the rows of tokens alone."""
    return tensor_name not in spec.gathered


def cached_attentions(spec: ModelSpec) -> dict[int, AttentionSpec]:
    """Return the layers that keep keys and values of their own, by their numbers.

    Those of a whole text are needed in its one step alone, so nobody keeps them.
    """
    mixers = {layer.index: layer.mixer for layer in spec.layers}
    return {
        index: mixer
        for index, mixer in mixers.items()
        if is_attention(mixer) and mixer.kv_of_layer is None and mixer.is_causal
    }


def kept_heads(attention: AttentionSpec) -> tuple[int, int]:
    """Return how many rows a layer keeps of a token, and how wide they are."""
    return attention.cached_rows, attention.head_dim


def kv_layer_bytes(attention: AttentionSpec, block_size: int, kv_dtype: str) -> int:
    """Return the bytes of one layer of a KV block: heads, the scales of codes, whole lines.

    A scale of int8 has two bytes for 32 columns; one of int4 has one byte for 16.
    """
    rows = attention.cached_rows * block_size
    has_scales = kv_dtype in ("int8", "int4")
    groups = -(-attention.head_dim // KV_SCALE_COLUMNS) if has_scales else 0
    numbers = rows * attention.head_dim * KV_ELEMENT_BITS[kv_dtype] // 8
    return align_up(numbers + rows * groups * _KV_SCALE_BYTES, _CACHE_LINE)


def register_widths(spec: ModelSpec) -> dict[str, int]:
    """Return how many float32 numbers a row has between operations, for each that is kept."""
    attentions = [layer.mixer for layer in spec.layers if is_attention(layer.mixer)]
    deltas = [layer.mixer for layer in spec.layers if not is_attention(layer.mixer)]
    mixtures = mixtures_of(spec)
    shared = [one.shared for one in mixtures if one.shared is not None]
    mlps = [*(layer.mlp for layer in spec.layers if layer.mlp is not None), *shared]
    inputs = spec.embedding.layer_inputs
    told = inputs.table.shape[1] if inputs is not None else 0
    gated = inputs.width if inputs is not None else 0
    bent = spec.hidden_size if spec.medusa else 0
    rotary = max((one.rope.rotary_dim for one in attentions if one.rope is not None), default=0)
    return {
        "residual": spec.hidden_size,
        "qkv": max(
            *(one.qkv.weight.shape[0] for one in attentions),
            *(one.inputs.weight.shape[0] for one in deltas),
            0,
            0,
        ),
        "mixed": max((one.mixer.output.weight.shape[1] for one in spec.layers), default=0),
        "joined": max(told, bent, *(one.up.weight.shape[0] for one in mlps), 0),
        "hidden": max(gated, bent, *(one.down.weight.shape[1] for one in mlps), 0),
        "added": spec.hidden_size,
        "normed": spec.hidden_size,
        "rotary": rotary,
        "rotary_other": rotary,
        **({"told": told} if told else {}),
        **({"delta_gates": max(one.gates.weight.shape[0] for one in deltas)} if deltas else {}),
        **_latent_widths(attentions),
        **_mixture_widths(spec, mixtures),
    }


def _latent_widths(attentions: list[AttentionSpec]) -> dict[str, int]:
    """Return the widths of what stands around latent attention."""
    latents = [one for one in attentions if one.latent is not None]
    if not latents:
        return {}
    made = [one.latent.query.weight.shape for one in latents if one.latent and one.latent.query]
    return {
        "query_latent": max((columns for _, columns in made), default=0),
        "queries": max((rows for rows, _ in made), default=0),
        "wide_queries": max(one.query_columns for one in latents),
        "wide_mixed": max(one.num_heads * one.value_dim for one in latents),
    }


def mixtures_of(spec: ModelSpec) -> list[ExpertsSpec]:
    return [layer.experts for layer in spec.layers if layer.experts is not None]


def _mixture_widths(spec: ModelSpec, mixtures: list[ExpertsSpec]) -> dict[str, int]:
    """Return the widths of what routing and experts keep; a row is one of each of its experts."""
    if not mixtures:
        return {}
    chosen = max(one.experts_per_token for one in mixtures)
    width = max(one.expert.down.weight.shape[1] for one in mixtures)
    joined = max(one.expert.up.weight.shape[0] // one.num_experts for one in mixtures)
    return {
        "shared": spec.hidden_size,
        "shared_gate": 1,
        "mixture": spec.hidden_size,
        "router": max(one.num_experts for one in mixtures),
        "choices": CHOICE_WORDS * chosen,
        "runs": CHOICE_WORDS * (chosen + 1),
        "chosen": chosen * spec.hidden_size,
        "chosen_joined": chosen * joined,
        "chosen_hidden": chosen * width,
    }


def quantized_columns(spec: ModelSpec) -> int:
    """Return the columns of a row of int8 activations: as many as the widest matrix reads."""
    matrices = (weight.shape for weight in spec.weights() if len(weight.shape) > 1)
    return align_up(max(shape[-1] for shape in matrices), _MOST_GROUP)


def chosen_rows(spec: ModelSpec) -> int:
    """Return the rows of chosen experts of a row; 0 where there are none."""
    return max((one.experts_per_token for one in mixtures_of(spec)), default=0)


def chosen_columns(spec: ModelSpec) -> int:
    """Return the columns of int8 activations that chosen experts read."""
    widths = [one.expert.down.weight.shape[1] for one in mixtures_of(spec)]
    return align_up(max((spec.hidden_size, *widths)), _MOST_GROUP) if widths else 0


def scratch_bytes(spec: ModelSpec, rows: int) -> int:
    """Return what a step of so many rows of a prompt writes, of which one is sampled.

    A whole text is computed at once, however long it is.
    """
    columns = quantized_columns(spec) + chosen_rows(spec) * chosen_columns(spec)
    quantized = columns + 2 * _SCALE_BYTES * (columns // LEAST_GROUP)
    floats = sum(register_widths(spec).values())
    if spec.is_encoder:
        return rows * (4 * floats + quantized)
    return min(rows, ROWS_AT_ONCE) * (4 * floats + quantized) + 4 * spec.vocab_size
