"""Adapters in torch: the reference of what every backend adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zse.errors import LoRAError
from zse.format.as_torch import matrix_from
from zse.kernels.low_rank.reference import add_low_rank

if TYPE_CHECKING:
    import torch

    from zse.backends.adapters import AdapterWeights, LowRank
    from zse.backends.torch.step import Step


class BoundLowRank(NamedTuple):
    """What is added to some columns of a product."""

    first: int
    scale: float
    down: torch.Tensor
    """float32 [rank, K]."""
    up: torch.Tensor
    """float32 [columns, rank]."""


class BoundAdapter:
    """An adapter, for each matrix by its name.

    Raises:
        LoRAError: A number in it is not finite.
    """

    def __init__(self, adapter: AdapterWeights) -> None:
        self._parts = {
            name: tuple(_bound(adapter.name, part) for part in parts)
            for name, parts in adapter.parts.items()
        }

    def add(self, matrix: str, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Add what it has for a matrix to the product [rows, N] of inputs [rows, K]."""
        for part in self._parts.get(matrix, ()):
            add_low_rank(outputs, inputs, part.down, part.up, first=part.first, scale=part.scale)


def add_adapters(step: Step, matrix: str, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
    """Add to the rows of a step what their sequences' adapters have for a matrix."""
    for chunk in step.chunks:
        if chunk.adapter is not None:
            rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
            chunk.adapter.add(matrix, inputs[rows], outputs[rows])


def _bound(adapter: str, part: LowRank) -> BoundLowRank:
    down, up = (matrix_from(m.data, m.scheme, m.columns) for m in (part.down, part.up))
    if not (down.isfinite().all() and up.isfinite().all()):
        raise LoRAError(f"the adapter '{adapter}' holds numbers that are not finite")
    return BoundLowRank(first=part.first_row, scale=part.scale, down=down, up=up)
