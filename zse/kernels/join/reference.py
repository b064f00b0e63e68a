"""What ``join`` computes, in torch."""

from __future__ import annotations

import torch

TOLERANCE = 2**-8
"""Of a result's largest number: it is rounded to 16 bits."""


def join(
    embeddings: torch.Tensor,
    states: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor],
    epsilons: tuple[float, float],
) -> torch.Tensor:
    """Return float32 [rows, 2 * hidden] of two float32 [rows, hidden], by a weight each."""
    parts = [
        rows * (rows.square().mean(-1, keepdim=True) + epsilon).rsqrt() * norm
        for rows, norm, epsilon in zip((embeddings, states), norms, epsilons, strict=True)
    ]
    return torch.cat(parts, 1)


def bent(stream: torch.Tensor, product: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the float32 stream with what a residual block adds to it."""
    return stream + torch.nn.functional.silu(product + bias)
