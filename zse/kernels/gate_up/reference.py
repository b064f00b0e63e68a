"""Reference of ``gate_up``: plain, slow, obviously right."""

from __future__ import annotations

import torch

from zse.kernels.norm.reference import rms_norm

TOLERANCE = 2e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""


def gate_up(
    residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return float32 [T, K] of a dequantized matrix [2K, H]: gate rows, then up rows."""
    return activated_product(rms_norm(residual, norm, epsilon) @ weight.float().T)


def activated_product(
    joined: torch.Tensor,
    activation: str = "silu",
    *,
    gated: bool = True,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return float32 [T, K] of gate and up columns side by side, [T, 2K]; or of up columns alone.

    Args:
        joined: Gate columns, then up columns; or up columns.
        activation: One of ``layout.ACTIVATIONS``.
        gated: Whether there are gate columns.
        bias: float32, added to ``joined`` first.
    """
    joined = joined.float() if bias is None else joined.float() + bias
    gate, up = joined.chunk(2, -1) if gated else (joined, 1.0)
    return _ACTIVATIONS[activation](gate) * up


_ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"),
    "relu2": lambda gate: torch.relu(gate) ** 2,
}
