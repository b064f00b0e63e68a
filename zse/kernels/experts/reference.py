"""Reference of ``experts``: plain, slow, obviously right."""

from __future__ import annotations

import torch

TOLERANCE = 2e-2
"""Largest error over largest value of a kernel that computes in 16 bits."""


def pair_products(
    activations: torch.Tensor,
    chosen: torch.Tensor,
    matrices: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return each token's or pair's products with the matrices of its experts, [T, k, N].

    Args:
        activations: [T, K], shared by the slots of a token, or [T, k, K].
        chosen: int32 [T, k].
        matrices: [experts, N, K].
        bias: [experts, N].
    """
    if activations.dim() == 2:
        activations = activations.unsqueeze(1).expand(-1, chosen.shape[1], -1)
    products = torch.einsum("tkc,tknc->tkn", activations, matrices[chosen.long()])
    return products if bias is None else products + bias[chosen.long()]
