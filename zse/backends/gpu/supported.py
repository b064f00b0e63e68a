"""Whether a GPU computes a model; looked at before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.heads import kind_of
from zse.backends.gpu.kinds import obstacles
from zse.backends.operations import is_attention, refuse
from zse.backends.resident import cached_attentions, kept_heads
from zse.kernels.attention.variants import PREFILL_FORMS, PrefillForm
from zse.kernels.layout import ACTIVATION_GROUP, HEAD_DIMS, PLAIN_PARTS
from zse.kernels.norm.variants import STREAM_ROW_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.models.layer_spec import AttentionSpec, LayerSpec, NormSpec
    from zse.models.spec import LayerInputsSpec, ModelSpec


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that the kernels do not compute, with an ``UnsupportedModelError``."""
    refuse("a GPU", _obstacles(spec))


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Return what the kernels do not compute: where a model has it, and what it is."""
    cached = cached_attentions(spec)
    if not _takes_stream_norm(spec, spec.embedding.norm):
        yield "the embedding", "a norm that no encoder of this width has"
    if spec.embedding.layer_inputs is not None:
        yield from _input_obstacles(spec.embedding.layer_inputs)
    if (join := spec.embedding.join) is not None:
        norms = (join.embedding_norm, join.state_norm)
        if spec.hidden_size % 16 or any(norm.kind != "rms" for norm in norms):
            yield "the embedding", "norms of what is joined that are no RMSNorms of whole groups"
    if spec.medusa:
        yield "the head", "guesses by states alone (Medusa)"
    if spec.is_encoder == (spec.head.pooling == "none"):
        yield "the head", "vectors in place of logits"
    for layer in spec.layers:
        where = f"layer {layer.index}"
        yield from ((where, what) for what in obstacles(layer))
        if is_attention(layer.mixer):
            yield from _attention_obstacles(where, layer.mixer, cached)
            if layer.mixer.is_causal == spec.is_encoder:
                yield where, "attention that does not fit its head"
        if layer.own_input is not None and layer.own_input.gate.bias is not None:
            yield where, "a bias of its own input's gate"
        stream_norms = (layer.mixer_stream_norm, layer.mlp_stream_norm)
        if not all(_takes_stream_norm(spec, norm) for norm in stream_norms):
            yield where, "a norm of the stream itself"
        if any(_kind(norm) == "layer" for norm in _norms_of_added(layer)):
            yield where, "a LayerNorm of what it adds to the stream"


def _takes_stream_norm(spec: ModelSpec, norm: NormSpec | None) -> bool:
    """Return whether the stream of a model can have a norm of its own, if it is to have one."""
    is_wide = spec.hidden_size > STREAM_ROW_GROUPS[-1] * ACTIVATION_GROUP
    return norm is None or (spec.is_encoder and norm.kind == "layer" and not is_wide)


def _input_obstacles(inputs: LayerInputsSpec) -> Iterator[tuple[str, str]]:
    if inputs.width % 16:
        yield "the embedding", f"{inputs.width} columns for each layer, no multiple of 16"
    if inputs.norm.kind != "rms" or inputs.projection.bias is not None:
        yield "the embedding", "a LayerNorm or a bias in its part for each layer"


def _norms_of_added(layer: LayerSpec) -> Iterator[NormSpec | None]:
    """Return the norms of what a layer adds to the stream."""
    yield from (layer.mixer_post_norm, layer.mlp_post_norm, layer.dense_post_norm)
    if layer.experts is not None:
        yield layer.experts.post_norm
    if layer.own_input is not None:
        yield layer.own_input.post_norm


def _attention_obstacles(
    where: str, attention: AttentionSpec, cached: Mapping[int, AttentionSpec]
) -> Iterator[tuple[str, str]]:
    q_norm, k_norm = attention.q_norm, attention.k_norm
    has_own_keys = attention.kv_of_layer is None
    if not attention.is_causal and not _is_of_texts(attention):
        yield where, "attention to what follows, of heads that no encoder has"
    if attention.kv_of_layer is not None:
        other = cached.get(attention.kv_of_layer)
        if other is None or kept_heads(other) != kept_heads(attention):
            yield where, f"keys of layer {attention.kv_of_layer}, which has none such"
    if {_kind(q_norm), _kind(k_norm) if has_own_keys else _kind(q_norm)} not in ({""}, {"rms"}):
        yield where, "norms of heads that are no pair of RMSNorms"
    elif q_norm is not None and q_norm.weight.shape[0] != attention.head_dim:
        usual = has_own_keys and not (attention.is_gated or attention.values_are_keys)
        if not usual or q_norm.weight.shape[0] != attention.query_columns:
            yield where, "norms of some heads together"


def _is_of_texts(attention: AttentionSpec) -> bool:
    """Return whether kernels compute attention to all of a text."""
    is_plain = kind_of(attention).shape.parts == PLAIN_PARTS and attention.q_norm is None
    extras = (attention.softcap, attention.sinks, attention.value_norm_epsilon)
    turns = attention.rope is None or attention.head_dim in HEAD_DIMS
    form = PrefillForm(head_dim=attention.head_dim, window=bool(attention.window), whole=True)
    return is_plain and turns and form in PREFILL_FORMS and extras == (None, None, None)


def _kind(norm: NormSpec | None) -> str:
    return "" if norm is None else norm.kind
