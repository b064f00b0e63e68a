"""Reference of ``exchange``: what all ranks hold afterwards, made of what each of them has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

NARROW_TOLERANCE = 2.0**-7
"""Largest error over the sum of magnitudes where ranks' sums are sent as bfloat16: each loses up to
2**-8 of itself; the whole sum, where it is sent so too, as much again."""


def rank_sum(
    parts: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] = (),
    *,
    narrow: bool = False,
    in_two: bool = False,
) -> torch.Tensor:
    """Return the sum, float32 [rows, columns], added in the order of ranks.

    Args:
        parts: Of each rank float32 [splits, rows, columns].
        biases: Of each rank float32 [columns], or None.
        narrow: Each rank's sum is rounded to bfloat16 first.
        in_two: The whole sum is rounded so, too.
    """
    total = torch.zeros(parts[0].shape[1:])
    for rank, part in enumerate(parts):
        own = part.sum(0)
        bias = biases[rank] if biases else None
        if bias is not None:
            own = own + bias
        total = total + (own.bfloat16().float() if narrow else own)
    return total.bfloat16().float() if in_two else total


def rank_gather(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all columns of rows, of which each rank has a run."""
    return torch.cat(list(parts), dim=1)
