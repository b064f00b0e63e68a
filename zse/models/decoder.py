"""The program of every model: the order of a decoder's operations. Tensors are opaque here."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from zse.models.layer_spec import AttentionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.abilities import Pooler
    from zse.backends.handles import Handle, LayerWeights
    from zse.backends.operations import Forward, Operations, Sampled, StageOperations, Step
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec, Pooling


def forward_of(spec: ModelSpec) -> Forward:
    """Return the pass of a model: its layers, then the choice of tokens."""

    def forward(ops: Operations, step: Step) -> Sampled:
        residual = run_layers(ops, spec, step)
        if not spec.place.is_last:
            return cast("StageOperations", ops).leave_stream(step, residual)
        return ops.lm_head_sample(step, residual, spec.head)

    return forward


def logits_of(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return float32 logits [wanted, vocab] of the rows that a step's chunks ask for.

    None where the head is computed elsewhere, by whom the stream goes on.
    """
    residual = run_layers(ops, spec, step)
    if not spec.place.is_last:
        return cast("StageOperations", ops).leave_stream(step, residual)
    return ops.lm_head(step, residual, spec.head)


def vectors_of(
    ops: Pooler, spec: ModelSpec, step: Step, pooling: Pooling
) -> Sequence[Sequence[float]]:
    """Return the vector of each chunk of a step, which is a whole text."""
    return ops.pool(step, run_layers(cast("Operations", ops), spec, step), pooling)


def run_layers(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return the residual stream [tokens, hidden] before the final norm and the head."""
    if spec.place.is_first:
        residual = ops.embed(step, ops.ends.embedding, spec.embedding.scale)
    else:
        residual = cast("StageOperations", ops).enter_stream(step)
    told, inputs = None, spec.embedding.layer_inputs
    if inputs is not None:
        assert ops.ends.layer_inputs is not None
        told = ops.layer_inputs(step, residual, ops.ends.layer_inputs, inputs)
    for layer in spec.layers:
        if ops.is_computed(step):
            continue
        with ops.layer(layer) as weights:
            residual = run_layer(ops, layer, weights, step, residual, told)
    return residual


def run_layer(
    ops: Operations,
    layer: LayerSpec,
    weights: LayerWeights,
    step: Step,
    residual: Handle,
    told: Handle | None,
) -> Handle:
    """Return the residual stream behind a layer; ``told`` is what ``layer_inputs`` returned."""
    mixed = _mix(ops, layer, weights, step, residual)
    residual = ops.linear_residual(
        step, mixed, weights.output, residual, layer.residual_scale, weights.mixer_post_norm
    )
    if weights.mixer_stream_norm is not None:
        residual = ops.norm_stream(step, residual, weights.mixer_stream_norm)
    residual = _think(ops, layer, weights, step, residual)
    if weights.mlp_stream_norm is not None:
        residual = ops.norm_stream(step, residual, weights.mlp_stream_norm)
    if layer.own_input is not None:
        assert weights.own_input is not None
        own = weights.own_input
        gated = ops.gate_input(step, residual, told, own, layer.own_input, layer.index)
        residual = ops.linear_residual(step, gated, own.projection, residual, 1.0, own.post_norm)
    if weights.stream_scale is not None:
        residual = ops.scale_stream(step, residual, weights.stream_scale)
    return residual


def _mix(
    ops: Operations, layer: LayerSpec, weights: LayerWeights, step: Step, residual: Handle
) -> Handle:
    """Return what the tokens of a sequence tell each other."""
    mixer, index = layer.mixer, layer.index
    if not isinstance(mixer, AttentionSpec):
        return ops.delta(step, residual, weights, mixer, index)
    qkv = ops.norm_linear(step, residual, weights.mixer_norm, weights.qkv)
    query = ops.rope_store(step, qkv, mixer, weights, index)
    return ops.attention(step, query, mixer, weights, index)


def _think(
    ops: Operations, layer: LayerSpec, weights: LayerWeights, step: Step, residual: Handle
) -> Handle:
    """Add what is done to each token: an MLP, a mixture of experts, or both side by side."""
    mlp, scale = layer.mlp, layer.residual_scale
    added = []
    if mlp is not None:
        hidden = ops.gate_up(step, residual, weights.mlp_norm, weights.up, mlp)
        if layer.experts is None:
            return ops.linear_residual(
                step, hidden, weights.down, residual, scale, weights.mlp_post_norm
            )
        added.append(ops.dense(step, hidden, weights.down, weights.dense_post_norm))
    assert layer.experts is not None
    assert weights.experts is not None
    added.append(ops.experts(step, residual, weights.experts, layer.experts))
    return ops.add(step, residual, added, scale, weights.mlp_post_norm)
