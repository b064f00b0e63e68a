"""Adapters in torch: the reference of what every backend adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.errors import LoRAError
from zse.format.as_torch import matrix_from
from zse.kernels.low_rank.reference import add_low_rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.backends.adapters import AdaptedMatrix, AdapterWeights, LowRank
    from zse.backends.torch.experts import StackedLinear
    from zse.backends.torch.step import Step
    from zse.backends.torch.weights import BoundLinear


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

    Args:
        adapter: What it adds.
        matrices: That it may add to.

    Raises:
        LoRAError: A number in it is not finite.
    """

    def __init__(self, adapter: AdapterWeights, matrices: Iterable[AdaptedMatrix]) -> None:
        self._parts = {
            (matrix.name, member): tuple(_bound(adapter.name, part) for part in parts)
            for matrix in matrices
            for member, parts in enumerate(matrix.by_member(adapter.parts.get(matrix.name, ())))
            if parts
        }

    def add(
        self, matrix: str, inputs: torch.Tensor, outputs: torch.Tensor, *, member: int = 0
    ) -> None:
        """Add what it has for a matrix to the product [rows, N] of inputs [rows, K].

        ``member`` is which of a stack it is.
        """
        for part in self._parts.get((matrix, member), ()):
            add_low_rank(outputs, inputs, part.down, part.up, first=part.first, scale=part.scale)


def adapted_product(step: Step, linear: BoundLinear, inputs: torch.Tensor) -> torch.Tensor:
    """Return the product of a matrix, with what the adapters of a step's rows add to it."""
    outputs = linear.multiply(inputs, step.single_rows)
    if step.adapts:
        for chunk in step.chunks:
            if chunk.adapter is not None:
                rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
                chunk.adapter.add(linear.name, inputs[rows], outputs[rows])
    return outputs


def add_expert_adapters(
    step: Step,
    stack: StackedLinear,
    expert: int,
    rows: torch.Tensor,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
) -> None:
    """Add to some rows of a step what their adapters have for an expert's matrix.

    Args:
        step: Whose adapters.
        stack: The matrices of all experts.
        expert: Whose matrix.
        rows: int64 [M], of the step, ascending.
        inputs: float32 [M, K].
        outputs: float32 [M, N], changed in place.
    """
    for chunk in step.chunks:
        if chunk.adapter is not None:
            edges = torch.tensor([chunk.first_row, chunk.first_row + chunk.num_tokens])
            own = slice(*torch.searchsorted(rows, edges).tolist())
            chunk.adapter.add(stack.name, inputs[own], outputs[own], member=expert)


def _bound(adapter: str, part: LowRank) -> BoundLowRank:
    down, up = (matrix_from(m.data, m.scheme, m.columns) for m in (part.down, part.up))
    if not (down.isfinite().all() and up.isfinite().all()):
        raise LoRAError(f"the adapter '{adapter}' holds numbers that are not finite")
    return BoundLowRank(first=part.first_row, scale=part.scale, down=down, up=up)
