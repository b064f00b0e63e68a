"""Reference of ``gate_up``: plain, slow, obviously right."""

from __future__ import annotations

import torch

TOLERANCE = 2e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""


def activated_product(
    joined: torch.Tensor,
    activation: str = "silu",
    *,
    gated: bool = True,
    bias: torch.Tensor | None = None,
    limit: float = float("inf"),
) -> torch.Tensor:
    """Return float32 [T, K] of gate and up columns side by side, [T, 2K]; or of up columns alone.

    ``activation`` is one of ``layout.ACTIVATIONS``, or ``tanh``; ``bias`` (float32) is added to
    ``joined``; ``limit`` is the bound of ``swiglu_oai``.
    """
    joined = joined.float() if bias is None else joined.float() + bias
    if not gated:
        return _activated(joined, activation)
    gate, up = joined.chunk(2, -1)
    if activation == "swiglu_oai":
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)
    return _activated(gate, activation) * up


def _activated(values: torch.Tensor, activation: str) -> torch.Tensor:
    functional = torch.nn.functional
    if activation == "relu2":
        return torch.relu(values) ** 2
    if activation == "tanh":
        return torch.tanh(values)
    if activation == "silu":
        return functional.silu(values)
    return functional.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")
