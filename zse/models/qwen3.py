"""Qwen3: every query and key head is normalized before it is rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.decoder import EMBED, attention_block, mlp_block

if TYPE_CHECKING:
    from zse.backends.protocol import Handle, Operations, Step
    from zse.models.config import ModelConfig


def run(ops: Operations, config: ModelConfig, step: Step) -> Handle:
    """Return the residual stream [tokens, hidden] before the final norm and the head."""
    residual = ops.embed(step, EMBED)
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        qkv = ops.norm_linear(step, residual, f"{name}.attn_norm.weight", f"{name}.qkv.weight")
        query = ops.rope_store(step, qkv, layer, f"{name}.q_norm.weight", f"{name}.k_norm.weight")
        residual = attention_block(ops, step, residual, layer, query, config.window_of_layer(layer))
        residual = mlp_block(ops, step, residual, layer)
    return residual
