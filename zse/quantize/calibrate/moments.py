"""What a matrix was given: the second moments of its inputs, and how many there were."""

from __future__ import annotations

from itertools import pairwise

import torch

from zse.quantize.place_of_work import CPU

MOST_TOGETHER = 4608
"""Inputs whose products are kept: where there are more, they are cut into ranges as wide, and what
inputs of different ranges have in common is left out. Time goes with the square of a range, and
with its third power."""
_ALIGN = 128
"""Ranges are whole groups of any scheme."""
_STRIP = 1024
"""Columns of the products that are made at a time: half of a symmetric matrix is saved then."""


class Moments:
    """Sums of squares and products of [tokens, K] inputs, float32.

    Args:
        columns: K.
        is_full: Whether products of different inputs are kept as well.
        device: Where they are, and the inputs will be.
    """

    def __init__(self, columns: int, *, is_full: bool, device: torch.device = CPU) -> None:
        self.count = 0
        """Inputs that were seen."""
        self.ranges = ranges_of(columns)
        """First column and end of each range."""
        self._squares = torch.zeros(columns, device=device)
        self._products = [
            torch.zeros(end - start, end - start, device=device)
            for start, end in (self.ranges if is_full else ())
        ]

    def add(self, inputs: torch.Tensor) -> None:
        """Count [tokens, K] float32 in."""
        self.count += inputs.shape[0]
        self._squares += inputs.square().sum(0)
        for (start, end), products in zip(self.ranges, self._products, strict=False):
            part = inputs[:, start:end]
            for first in range(0, end - start, _STRIP):
                strip = part[:, first : first + _STRIP].t()
                products[first : first + _STRIP, first:].addmm_(strip, part[:, first:])

    def squares(self) -> torch.Tensor:
        """Return the mean square of each input [K], none of them 0."""
        mean = self._squares / max(self.count, 1)
        return mean.clamp(min=float(mean.mean()) * 1e-6 + 1e-30)

    def products(self) -> list[torch.Tensor]:
        """Return the mean products of the inputs of each range, symmetric; none if none are kept.

        They are no longer kept afterwards.
        """
        found = [one.triu_() / max(self.count, 1) for one in self._products]
        self._products = []
        return [upper + upper.triu(1).t() for upper in found]


def ranges_of(columns: int) -> list[tuple[int, int]]:
    """Cut columns into ranges of at most ``MOST_TOGETHER``, as wide as each other where it fits."""
    count = -(-columns // MOST_TOGETHER)
    width = -(-columns // (count * _ALIGN)) * _ALIGN
    edges = [*range(0, columns, width), columns]
    return list(pairwise(edges))
