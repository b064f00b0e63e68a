"""Codes by error feedback: what rounding one input's weights loses, the inputs after it make good.

This is GPTQ (arXiv:2210.17323) in the form of LDLQ (arXiv:2307.13304), which needs one triangular
factor and no inverse: with products of inputs ``H = (U + 1) D (U + 1)^T``, U strictly upper, weight
k is rounded after the errors of those before it, times column k of U, were added to it. Inputs that
count most come first. Scales are found before, by the squares alone, so groups stay what they are
whatever the order.

What a few thousand tokens say of the products of as many inputs is half chance, and feedback that
trusts it makes good what was never lost. So products of different inputs count less the fewer
tokens there are for each input: they are shrunk towards none (Ledoit and Wolf, 2004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.quantize.calibrate.grids import Grid

DAMPING = 0.01
"""Of the mean square, added to every square: what was not seen in a text may come in another."""
_TOKENS_AN_INPUT = 2
"""With so many, what products of inputs say counts half. Tokens of a text are like those beside
them, so it is more than independent ones would ask for."""
_BLOCK = 64
"""Inputs whose errors are fed forward one by one; those of earlier blocks come as one product."""


@record
class Feedback:
    """How errors are fed forward among a range of inputs: made once, used for any rows."""

    order: list[int]
    """The inputs in the order of rounding: columns of the matrix."""
    factor: torch.Tensor
    """float32 [inputs, inputs] in that order, strictly upper."""

    @classmethod
    def of(cls, first: int, products: torch.Tensor, count: int) -> Feedback:
        """Factor the mean products of the inputs from column ``first`` on, of ``count`` tokens."""
        products = shrunk(products, count)
        squares = products.diagonal().clone()
        damping = DAMPING * float(squares.mean()) + 1e-30
        order = torch.argsort(squares, descending=True, stable=True)
        backwards = order.flip(0)
        flipped = products[backwards][:, backwards]
        flipped.diagonal().add_(damping)
        upper = torch.linalg.cholesky(flipped).flip(0, 1)
        upper /= upper.diagonal().clone()
        upper.diagonal().zero_()
        return cls(order=(order + first).tolist(), factor=upper)


def shrunk(products: torch.Tensor, count: int) -> torch.Tensor:
    """Return mean products of inputs of ``count`` tokens, those of different ones as trusted."""
    found = products * (count / (count + _TOKENS_AN_INPUT * products.shape[0]))
    found.diagonal().copy_(products.diagonal())
    return found


def round_with_feedback(
    grid: Grid, rows: torch.Tensor, feedbacks: Sequence[Feedback]
) -> torch.Tensor:
    """Return codes of float32 rows [num_rows, K], chosen range by range.

    Args:
        grid: The values that codes may stand for.
        rows: The weights.
        feedbacks: Of each range of the columns.
    """
    codes = torch.empty(rows.shape[1], rows.shape[0], dtype=grid.dtype, device=rows.device)
    for feedback in feedbacks:
        _round_range(codes, grid, rows, feedback)
    return codes.t()


def _round_range(codes: torch.Tensor, grid: Grid, rows: torch.Tensor, feedback: Feedback) -> None:
    order, factor = feedback.order, feedback.factor
    weights = rows.t()[order]  # [inputs, num_rows]: an input's weights lie together
    errors = torch.empty_like(weights)
    for start in range(0, len(order), _BLOCK):
        end = min(start + _BLOCK, len(order))
        wanted = torch.addmm(weights[start:end], factor[:start, start:end].t(), errors[:start])
        for index in range(start, end):
            target = wanted[index - start]
            if index > start:
                target.addmv_(errors[start:index].t(), factor[start:index, index])
            codes[order[index]], value = grid.nearest(target, order[index])
            torch.sub(weights[index], value, out=errors[index])
