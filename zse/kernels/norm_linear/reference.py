"""Reference of ``norm_linear``: plain, slow, obviously right."""

from __future__ import annotations

import torch


def rms_norm(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return ``values / rms(values) * weight`` over the last dimension, float32."""
    root = torch.sqrt(values.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return values / root * weight


def norm_linear(
    residual: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return float32 [T, N] of a residual stream [T, H] and a dequantized matrix [N, H]."""
    outputs = rms_norm(residual, norm, epsilon) @ weight.float().T
    return outputs if bias is None else outputs + bias
