"""Whether a GPU computes a model; looked at before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention, refuse
from zse.backends.resident import cached_attentions, kept_heads
from zse.errors import UnsupportedModelError
from zse.kernels.delta.variants import check_delta
from zse.kernels.experts.weight import STEP_COLUMNS
from zse.kernels.route.rules import MAX_CHOSEN, MAX_EXPERTS, MAX_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.models.spec import (
        AttentionSpec,
        ExpertsSpec,
        LayerInputsSpec,
        LayerSpec,
        ModelSpec,
        NormSpec,
    )


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that the kernels do not compute, with an ``UnsupportedModelError``."""
    refuse("a GPU", _obstacles(spec))


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Return what the kernels do not compute: where a model has it, and what it is."""
    cached = cached_attentions(spec)
    if spec.embedding.positions is not None:
        yield "the embedding", "learned positions"
    if spec.embedding.token_types is not None or spec.embedding.norm is not None:
        yield "the embedding", "types of tokens, or a norm"
    if spec.head.classifier is not None:
        yield "the head", "a classifier of texts"
    if spec.embedding.layer_inputs is not None:
        yield from _input_obstacles(spec.embedding.layer_inputs)
    for layer in spec.layers:
        where = f"layer {layer.index}"
        if layer.experts is not None:
            if layer.mlp is not None and None in (layer.dense_post_norm, layer.experts.post_norm):
                yield where, "a dense MLP beside experts without a norm of each"
            yield from _expert_obstacles(where, layer.experts)
        if is_attention(layer.mixer):
            yield from _attention_obstacles(where, layer.mixer, cached)
        else:
            mixer = layer.mixer
            try:
                check_delta(mixer.key_dim, mixer.value_dim, mixer.convolution_width)
            except UnsupportedModelError as error:
                yield where, str(error)
        if layer.own_input is not None and layer.own_input.gate.bias is not None:
            yield where, "a bias of its own input's gate"
        if layer.mixer_stream_norm is not None or layer.mlp_stream_norm is not None:
            yield where, "a norm of the stream itself"
        if any(_kind(norm) == "layer" for norm in _norms_of_added(layer)):
            yield where, "a LayerNorm of what it adds to the stream"
    if spec.head.weight is None or spec.head.pooling != "none":
        yield "the head", "vectors in place of logits"


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


def _expert_obstacles(where: str, experts: ExpertsSpec) -> Iterator[tuple[str, str]]:
    shared, gate = experts.shared, experts.shared_gate
    slots = experts.experts_per_token + (shared is not None)
    if experts.num_experts > MAX_EXPERTS or slots > MAX_CHOSEN or experts.num_groups > MAX_GROUPS:
        yield where, f"more than {MAX_EXPERTS} experts, {MAX_CHOSEN} a token or {MAX_GROUPS} groups"
    if (shared and shared.down.bias) or (gate and gate.bias):
        yield where, "a shared expert with a bias behind it"
    matrices = (experts.expert.up.weight, experts.expert.down.weight)
    if any(matrix.shape[1] % STEP_COLUMNS for matrix in matrices):
        yield where, f"experts of a width that is no multiple of {STEP_COLUMNS}"


def _attention_obstacles(
    where: str, attention: AttentionSpec, cached: Mapping[int, AttentionSpec]
) -> Iterator[tuple[str, str]]:
    q_norm, k_norm = attention.q_norm, attention.k_norm
    has_own_keys = attention.kv_of_layer is None
    if not attention.is_causal:
        yield where, "attention to what follows"
    if attention.latent is not None:
        yield where, "keys and values that are made of a latent"
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


def _kind(norm: NormSpec | None) -> str:
    return "" if norm is None else norm.kind
