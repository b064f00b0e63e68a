"""Reference of ``linear_residual``: plain, slow, obviously right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def linear_residual(
    inputs: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Return float32 [T, H]: residual + inputs [T, K] @ dequantized weight [H, K]^T."""
    return residual + inputs @ weight.float().T
