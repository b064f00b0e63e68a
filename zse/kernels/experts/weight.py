"""How the matrices of experts lie in device memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.kernels.linear.weight import GROUPED_SCHEMES, PLAIN_SCHEMES
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.linear.weight import LinearWeight

STEP_COLUMNS = 64
"""Columns of a step of the kernels on tensor cores, where the scheme has no groups; rows of int8
activations are whole steps, too."""


@record
class StackedWeight:
    """The matrices [rows, columns] of all experts, one after the other."""

    stack: LinearWeight
    """[experts * rows, columns]."""
    experts: int
    bias: int = 0
    """Address of float32 [experts, rows], 0 for none."""
    shared: LinearWeight | None = None
    """The shared expert's matrix, where it is one more of the same form."""

    @property
    def rows(self) -> int:
        """Rows of one expert's matrix."""
        return self.stack.rows // self.experts

    @property
    def columns(self) -> int:
        return self.stack.columns

    def of(self, experts: int) -> LinearWeight:
        """Return a matrix of the size of some experts', as plans look at it."""
        return replace(self.stack, rows=self.rows * experts, weights=0, scales=0)

    def shared_bytes(self) -> tuple[int, int]:
        """Return the bytes from the stack to the shared expert's matrix, of codes and of scales."""
        if self.shared is None:
            return 0, 0
        return self.shared.weights - self.stack.weights, self.shared.scales - self.stack.scales


def takes_slot(shared: LinearWeight, stack: LinearWeight, experts: int) -> bool:
    """Return whether a shared expert's matrix can be one more of the stacked ones."""
    form = (stack.scheme, stack.rows // experts, stack.columns, stack.group_size)
    return form == (shared.scheme, shared.rows, shared.columns, shared.group_size)


def reads_few_rows(weight: StackedWeight, *, quantized: bool) -> bool:
    """Return whether the kernel for a few rows multiplies such matrices.

    Args:
        quantized: Whether activations may be int8, which all but 16-bit weights need.
    """
    scheme = weight.stack.scheme
    if scheme in PLAIN_SCHEMES:
        return True
    return quantized and weight.columns % STEP_COLUMNS == 0


def step_columns(weight: StackedWeight) -> int:
    """Return the columns of a step of the kernels on tensor cores."""
    return weight.stack.group_size if weight.stack.scheme in GROUPED_SCHEMES else STEP_COLUMNS
