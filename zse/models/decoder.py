"""What the families share: the order of the operations in a decoder-only transformer.

A family's file says what its layers add to it. Tensors are opaque here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from zse.backends.protocol import Handle, Operations, Step
    from zse.models.config import ModelConfig

EMBED = "embed.weight"
FINAL_NORM = "final_norm.weight"
HEAD = "lm_head.weight"


class Program(Protocol):
    """One forward pass: from the tokens of a step to the residual stream before the head."""

    def __call__(self, ops: Operations, config: ModelConfig, step: Step) -> Handle:
        """Return the residual stream [tokens, hidden]."""


def attention_block(
    ops: Operations, step: Step, residual: Handle, layer: int, query: Handle, window: int | None
) -> Handle:
    """Return the residual stream after attention and its output projection."""
    attended = ops.attention(step, query, layer, window)
    return ops.linear_residual(step, attended, f"layers.{layer}.o.weight", residual)


def mlp_block(ops: Operations, step: Step, residual: Handle, layer: int) -> Handle:
    """Return the residual stream after the gated multilayer perceptron."""
    name = f"layers.{layer}"
    hidden = ops.gate_up(step, residual, f"{name}.mlp_norm.weight", f"{name}.gate_up.weight")
    return ops.linear_residual(step, hidden, f"{name}.down.weight", residual)
