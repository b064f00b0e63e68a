"""How the rows of a matrix become codes: by what its inputs were, where that is known."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from zse.quantize.calibrate.feedback import Feedback, round_with_feedback
from zse.quantize.calibrate.grids import grid_of
from zse.quantize.finite import check_finite
from zse.quantize.scheme import quantize_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.format.layout import PlannedTensor
    from zse.format.schemes import Scheme
    from zse.quantize.calibrate.moments import Moments

_FEWEST_TOKENS = 32
"""Inputs that say something: an expert that got fewer is rounded as without data."""


_ELEMENTS = 256 * 1024
_GPU_ELEMENTS = 16 * 1024 * 1024


class Rounding:
    """Quantizes rows of a matrix, or of a stack of them. Made with all threads that there are.

    Args:
        moments: Of the inputs of each matrix of the stack.
    """

    def __init__(self, moments: Sequence[Moments]) -> None:
        self._members = [_Member(one) for one in moments]
        if len(self._members) == 1:  # else threads share the work, a matrix each
            _ = self._members[0].feedbacks

    @property
    def num_members(self) -> int:
        return len(self._members)

    def quantize(
        self, planned: PlannedTensor, rows: torch.Tensor, member: int
    ) -> dict[str, torch.Tensor]:
        """Return the parts by role of float32 rows of one matrix, as ``quantize_rows`` does."""
        scheme, group_size, found = planned.scheme, planned.group_size, self._members[member]
        if found.moments.count < _FEWEST_TOKENS:
            return quantize_rows(scheme, rows, group_size)
        return round_rows(scheme, rows, group_size, found.moments.squares(), found.feedbacks)


def round_rows(
    scheme: Scheme,
    rows: torch.Tensor,
    group_size: int,
    squares: torch.Tensor,
    feedbacks: Sequence[Feedback],
) -> dict[str, torch.Tensor]:
    """Return the parts by role of float32 rows: scales by the squares of inputs, codes by feedback.

    Raises:
        ConversionError: A scale or an offset is beyond what float16 reaches.
    """
    # Scales are found a few rows at a time: what fits in a core's cache is much faster.
    elements = _ELEMENTS if rows.device.type == "cpu" else _GPU_ELEMENTS
    pieces = [
        quantize_rows(scheme, some, group_size, squares)
        for some in torch.split(rows, max(1, elements // rows.shape[1]))
    ]
    parts = {role: torch.cat([piece[role] for piece in pieces]) for role in pieces[0]}
    if not feedbacks:
        return parts
    grid = grid_of(scheme, parts, group_size)
    return check_finite(grid.parts(round_with_feedback(grid, rows, feedbacks)), scheme)


class _Member:
    """What is known of one matrix."""

    def __init__(self, moments: Moments) -> None:
        self.moments = moments

    @cached_property
    def feedbacks(self) -> list[Feedback]:
        """How its errors are fed forward; none where only the squares of its inputs are known."""
        if self.moments.count < _FEWEST_TOKENS:
            return []
        count = self.moments.count
        return [
            Feedback.of(start, products, count)
            for (start, _), products in zip(
                self.moments.ranges, self.moments.products(), strict=False
            )
        ]
