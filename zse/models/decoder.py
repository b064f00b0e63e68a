"""The program of every model: the order of a decoder's operations. Tensors are opaque here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.spec import AttentionSpec

if TYPE_CHECKING:
    from zse.backends.protocol import Forward, Handle, Operations, Sampled, Step
    from zse.models.spec import LayerSpec, ModelSpec


def forward_of(spec: ModelSpec) -> Forward:
    """Return the pass of a model: its layers, then the choice of tokens."""
    head = _head_names(spec)

    def forward(ops: Operations, step: Step) -> Sampled:
        return ops.lm_head_sample(step, run_layers(ops, spec, step), *head)

    return forward


def logits_of(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return float32 logits [wanted, vocab] of the rows that a step's chunks ask for."""
    return ops.lm_head(step, run_layers(ops, spec, step), *_head_names(spec))


def run_layers(ops: Operations, spec: ModelSpec, step: Step) -> Handle:
    """Return the residual stream [tokens, hidden] before the final norm and the head."""
    residual = ops.embed(step, spec.embedding.weight.name)
    for layer in spec.layers:
        residual = _run_layer(ops, layer, step, residual)
    return residual


def _head_names(spec: ModelSpec) -> tuple[str, str]:
    assert spec.head.weight is not None
    return spec.head.norm.weight.name, spec.head.weight.name


def _run_layer(ops: Operations, layer: LayerSpec, step: Step, residual: Handle) -> Handle:
    attention, mlp = layer.mixer, layer.mlp
    assert isinstance(attention, AttentionSpec)
    assert mlp is not None
    qkv = ops.norm_linear(
        step,
        residual,
        layer.mixer_norm.weight.name,
        attention.qkv.weight.name,
        None if attention.qkv.bias is None else attention.qkv.bias.name,
    )
    head_norms = [
        None if norm is None else norm.weight.name for norm in (attention.q_norm, attention.k_norm)
    ]
    query = ops.rope_store(step, qkv, layer.index, *head_norms)
    attended = ops.attention(step, query, layer.index, attention.window)
    residual = ops.linear_residual(step, attended, attention.output.weight.name, residual)
    hidden = ops.gate_up(step, residual, layer.mlp_norm.weight.name, mlp.up.weight.name)
    return ops.linear_residual(step, hidden, mlp.down.weight.name, residual)
