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
