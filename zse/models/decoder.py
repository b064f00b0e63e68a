"""The program of every model: the order of a decoder's operations. Tensors are opaque here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.spec import AttentionSpec

if TYPE_CHECKING:
    from zse.backends.operations import Forward, Handle, LayerWeights, Operations, Sampled, Step
    from zse.models.spec import LayerSpec, ModelSpec


def forward_of(spec: ModelSpec) -> Forward:
    """Return the pass of a model: its layers, then the choice of tokens."""

    def forward(ops: Operations, step: Step) -> Sampled:
        return ops.lm_head_sample(step, run_layers(ops, spec, step), spec.head)

    return forward


def logits_of(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return float32 logits [wanted, vocab] of the rows that a step's chunks ask for."""
    return ops.lm_head(step, run_layers(ops, spec, step), spec.head)


def run_layers(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return the residual stream [tokens, hidden] before the final norm and the head."""
    residual = ops.embed(step, ops.ends.embedding, spec.embedding.scale)
    for layer in spec.layers:
        with ops.layer(layer) as weights:
            residual = _run_layer(ops, layer, weights, step, residual)
    return residual


def _run_layer(
    ops: Operations, layer: LayerSpec, weights: LayerWeights, step: Step, residual: Handle
) -> Handle:
    attention, mlp, index, scale = layer.mixer, layer.mlp, layer.index, layer.residual_scale
    assert isinstance(attention, AttentionSpec)
    assert mlp is not None
    qkv = ops.norm_linear(step, residual, weights.mixer_norm, weights.qkv)
    query = ops.rope_store(step, qkv, attention, weights, index)
    mixed = ops.attention(step, query, attention, index)
    residual = ops.linear_residual(
        step, mixed, weights.output, residual, scale, weights.mixer_post_norm
    )
    hidden = ops.gate_up(step, residual, weights.mlp_norm, weights.up, mlp)
    return ops.linear_residual(step, hidden, weights.down, residual, scale, weights.mlp_post_norm)
