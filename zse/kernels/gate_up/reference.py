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


def activated_product(joined: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Return float32 [T, K] of gate and up columns side by side, [T, 2K].

    Args:
        joined: Gate columns, then up columns.
        activation: ``silu``, or ``gelu`` for its tanh form.
    """
    gate, up = joined.float().chunk(2, -1)
    if activation == "gelu":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    return gate * torch.sigmoid(gate) * up
