"""What an adapter adds to some columns of a product, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def add_low_rank(
    outputs: torch.Tensor,
    inputs: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    *,
    first: int,
    scale: float,
) -> None:
    """Add ``scale * (inputs @ down^T) @ up^T`` to columns ``first`` and following of ``outputs``.

    Args:
        outputs: float32 [rows, N], changed in place.
        inputs: float32 [rows, K].
        down: float32 [rank, K].
        up: float32 [columns, rank].
    """
    added = (inputs @ down.t()) @ up.t()
    outputs[:, first : first + up.shape[0]].add_(added, alpha=scale)
