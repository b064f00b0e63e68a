"""Reference of ``gate_up``: plain, slow, obviously right."""

from __future__ import annotations

import torch

from zse.kernels.norm_linear.reference import norm_linear


def gate_up(
    residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return float32 [T, K] of a dequantized matrix [2K, H]: gate rows, then up rows."""
    gate, up = norm_linear(residual, norm, weight, epsilon).chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


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
