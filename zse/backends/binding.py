"""From the spec of a layer to the handles that operations take: once, when a model is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from zse.backends.handles import (
    ClassifierWeights,
    DeltaWeights,
    ExpertWeights,
    LatentWeights,
    LayerInputsWeights,
    LayerInputWeights,
    LayerWeights,
)
from zse.backends.operations import is_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.handles import Handle
    from zse.models.layer_spec import (
        ExpertsSpec,
        LatentSpec,
        LayerInputSpec,
        LayerSpec,
        LinearAttentionSpec,
        LinearSpec,
        NormSpec,
    )
    from zse.models.spec import ClassifierSpec, LayerInputsSpec
    from zse.models.weights import WeightSpec


class Binder(Protocol):
    """What makes handles of weights."""

    def linear(self, spec: LinearSpec) -> Handle:
        """Return the handle of a matrix and its bias."""

    def norm(self, spec: NormSpec) -> Handle:
        """Return the handle of a norm."""

    def vector(self, spec: WeightSpec) -> Handle:
        """Return the handle of float32 numbers that are no norm."""

    def matrix(self, spec: WeightSpec) -> Handle:
        """Return the handle of plain numbers in rows, each of which is looked at alone."""


def bind_layer(layer: LayerSpec, binder: Binder) -> LayerWeights:
    """Return the handles of a layer."""
    mixer, mlp = layer.mixer, layer.mlp
    attention = mixer if is_attention(mixer) else None
    latent = None if attention is None else attention.latent
    return LayerWeights(
        mixer_norm=_bound(binder.norm, layer.mixer_norm),
        qkv=_bound(binder.linear, attention and attention.qkv),
        q_norm=_bound(binder.norm, attention and attention.q_norm),
        k_norm=_bound(binder.norm, attention and attention.k_norm),
        latent=_bind_latent(latent, binder) if latent is not None else None,
        sinks=_bound(binder.vector, attention and attention.sinks),
        delta=None if is_attention(mixer) else _bind_delta(mixer, binder),
        output=binder.linear(mixer.output),
        mixer_post_norm=_bound(binder.norm, layer.mixer_post_norm),
        mixer_stream_norm=_bound(binder.norm, layer.mixer_stream_norm),
        mlp_norm=_bound(binder.norm, layer.mlp_norm),
        up=_bound(binder.linear, mlp and mlp.up),
        down=_bound(binder.linear, mlp and mlp.down),
        dense_post_norm=_bound(binder.norm, layer.dense_post_norm),
        experts=_bind_experts(layer.experts, binder) if layer.experts is not None else None,
        mlp_post_norm=_bound(binder.norm, layer.mlp_post_norm),
        mlp_stream_norm=_bound(binder.norm, layer.mlp_stream_norm),
        own_input=None if layer.own_input is None else _bind_input(layer.own_input, binder),
        stream_scale=_bound(binder.vector, layer.stream_scale),
    )


def bind_classifier(classifier: ClassifierSpec | None, binder: Binder) -> ClassifierWeights | None:
    """Return the handles of what scores a text."""
    if classifier is None:
        return None
    return ClassifierWeights(
        dense=binder.linear(classifier.dense),
        norm=_bound(binder.norm, classifier.norm),
        output=binder.linear(classifier.output),
    )


def bind_layer_inputs(inputs: LayerInputsSpec, table: Handle, binder: Binder) -> LayerInputsWeights:
    """Return the handles of per-layer embeddings; rows are gathered from ``table``."""
    return LayerInputsWeights(
        table=table, projection=binder.linear(inputs.projection), norm=binder.norm(inputs.norm)
    )


def _bind_latent(latent: LatentSpec, binder: Binder) -> LatentWeights:
    return LatentWeights(
        query_norm=_bound(binder.norm, latent.query_norm),
        query=_bound(binder.linear, latent.query),
        norm=binder.norm(latent.norm),
        expansion=binder.matrix(latent.expansion),
    )


def _bind_input(own: LayerInputSpec, binder: Binder) -> LayerInputWeights:
    return LayerInputWeights(
        gate=binder.linear(own.gate),
        projection=binder.linear(own.projection),
        post_norm=_bound(binder.norm, own.post_norm),
    )


def _bind_delta(delta: LinearAttentionSpec, binder: Binder) -> DeltaWeights:
    return DeltaWeights(
        inputs=binder.linear(delta.inputs),
        gates=binder.linear(delta.gates),
        convolution=binder.vector(delta.convolution),
        decay=binder.vector(delta.decay),
        step_bias=binder.vector(delta.step_bias),
        norm=binder.norm(delta.norm),
    )


def _bind_experts(experts: ExpertsSpec, binder: Binder) -> ExpertWeights:
    shared = experts.shared
    return ExpertWeights(
        norm=_bound(binder.norm, experts.norm),
        router_norm=_bound(binder.norm, experts.router_norm),
        router=binder.linear(experts.router),
        selection_bias=_bound(binder.vector, experts.selection_bias),
        expert_scale=_bound(binder.vector, experts.expert_scale),
        up=binder.linear(experts.expert.up),
        down=binder.linear(experts.expert.down),
        shared_up=_bound(binder.linear, shared and shared.up),
        shared_down=_bound(binder.linear, shared and shared.down),
        shared_gate=_bound(binder.linear, experts.shared_gate),
        post_norm=_bound(binder.norm, experts.post_norm),
    )


def _bound(make: Callable[[Any], Handle], spec: object) -> Handle | None:
    return None if spec is None else make(spec)
