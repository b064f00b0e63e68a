"""What the kernels of ``turned`` compute, in float64."""

from __future__ import annotations

import torch

from zse.kernels.linear.reference import turn_and_round


def normed(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return float64 [rows, hidden]: the RMSNorm of rows, turned and rounded to int8."""
    wide = values.double()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return turn_and_round((wide * factor * weight.double()).bfloat16())


def gated(joined: torch.Tensor) -> torch.Tensor:
    """Return float64 [rows, width]: silu(gate) * up of [rows, 2 * width], turned and rounded."""
    gate, up = joined.double().chunk(2, -1)
    return turn_and_round((gate * torch.sigmoid(gate) * up).bfloat16())
