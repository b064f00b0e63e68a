"""Handles of weights: what a backend made of them when it was opened, under the names of a spec.

A program passes them on and never looks inside.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from zse.records import record

Handle: TypeAlias = Any
"""A tensor or a weight that only its backend understands."""


@record
class ExpertWeights:
    """Handles of a mixture of experts, under the names of its spec; None where it has none."""

    norm: Handle | None
    router_norm: Handle | None
    router: Handle
    selection_bias: Handle | None
    expert_scale: Handle | None
    up: Handle
    """Stacked, as ``down`` is."""
    down: Handle
    shared_up: Handle | None
    shared_down: Handle | None
    shared_gate: Handle | None
    post_norm: Handle | None


@record
class LatentWeights:
    """Handles of what heads are made of a latent by, under the names of its spec."""

    query_norm: Handle | None
    query: Handle | None
    norm: Handle
    expansion: Handle


@record
class DeltaWeights:
    """Handles of a linear attention, under the names of its spec."""

    inputs: Handle
    gates: Handle
    convolution: Handle
    decay: Handle
    step_bias: Handle
    norm: Handle


@record
class LayerInputWeights:
    """Handles of what takes a layer's own input, under the names of its spec."""

    gate: Handle
    projection: Handle
    post_norm: Handle | None


@record
class LayerInputsWeights:
    """Handles of per-layer embeddings, under the names of their spec."""

    table: Handle
    projection: Handle
    norm: Handle


@record
class LayerWeights:
    """Handles of one layer, under the names of its spec; None where the spec has none."""

    mixer_norm: Handle | None
    qkv: Handle | None
    q_norm: Handle | None
    k_norm: Handle | None
    latent: LatentWeights | None
    sinks: Handle | None
    delta: DeltaWeights | None
    output: Handle
    """Of whatever mixes the tokens."""
    mixer_post_norm: Handle | None
    mixer_stream_norm: Handle | None
    mlp_norm: Handle | None
    up: Handle | None
    down: Handle | None
    dense_post_norm: Handle | None
    experts: ExpertWeights | None
    mlp_post_norm: Handle | None
    mlp_stream_norm: Handle | None
    own_input: LayerInputWeights | None
    stream_scale: Handle | None


@record
class ClassifierWeights:
    """Handles of what scores a text, under the names of its spec."""

    dense: Handle
    norm: Handle | None
    output: Handle


@record
class MedusaWeights:
    """Handles of a head that guesses from a state, under the names of its spec."""

    blocks: tuple[Handle, ...]
    matrix: Handle


@record
class EndWeights:
    """Handles of what stands before the first layer and behind the last."""

    embedding: Handle
    final_norm: Handle
    head: Handle
    """None where a model has none."""
    classifier: ClassifierWeights | None = None
    layer_inputs: LayerInputsWeights | None = None
    medusa: tuple[MedusaWeights, ...] = ()
    """In the order of its heads, of a model that is such heads."""
