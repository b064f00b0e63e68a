"""Reference of ``lm_head_sample``: plain, slow, obviously right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.norm_linear.reference import norm_linear

if TYPE_CHECKING:
    import torch


def lm_head_sample(
    residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, list[int]]:
    """Return float32 logits [T, V] and the most likely token of each row, lowest id on a tie."""
    logits = norm_linear(residual, norm, weight, epsilon)
    rows = logits.tolist()
    return logits, [row.index(max(row)) for row in rows]
