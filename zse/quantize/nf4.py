"""NF4: sixteen quantiles of a normal distribution, one float16 scale a group.

bitsandbytes scales a group by its largest absolute value. Here that is where a search begins: with
its sign and the other, since the table is finer above zero than below, and with a little less of
it. Then the scale is fitted to the codes by least squares. It takes a sixth off the squared error
of Gaussian weights, and any reader of NF4 reads it. The order of nibbles in a byte is ours (see
``packing``).
"""

from __future__ import annotations

from functools import cache

import torch

from zse.format.nf4 import NF4_CODES
from zse.format.schemes import Scheme
from zse.quantize.finite import check_finite
from zse.quantize.packing import pack_int4, tree_sum_
from zse.quantize.place_of_work import CPU
from zse.records import record

STARTS = (1.0, -1.0, 0.92, -0.92)
"""Of the largest absolute value: the scales that the search begins with."""
REFINE_ROUNDS = 1
_CELLS = 128  # narrower than the smallest gap between midpoints, so a cell holds at most one


def quantize_nf4(
    rows: torch.Tensor, group_size: int, importance: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], absmax float16.

    The scales, which may be negative, are [num_rows, K/G] for groups of G along K. ``importance``
    is [K] float32 above 0: what the squared error of an input's weights counts; None: all alike.

    Raises:
        ConversionError: A group's range is not finite.
    """
    num_rows, columns = rows.shape
    groups = rows.reshape(-1, group_size).t().contiguous()  # [group_size, num_groups]
    largest = groups.abs().amax(0)
    check_finite({"range": largest}, Scheme.NF4)
    counts = None
    if importance is not None:
        counts = importance.reshape(-1, group_size).t().repeat(1, num_rows)
    best = _fit(groups, largest, counts)
    for start in STARTS[1:]:
        best = _better(best, _fit(groups, largest * start, counts))
    for _ in range(REFINE_ROUNDS):
        best = _better(best, _fit(groups, best.scale, counts))
    stored = best.scale.half()
    codes = _codes(groups, stored.float()).t().reshape(num_rows, columns)
    return {
        "qweight": pack_int4(codes, group_size),
        "absmax": stored.view(num_rows, columns // group_size),
    }


@record
class _Fit:
    """The best scale of codes, for each of num_groups groups."""

    scale: torch.Tensor
    explained: torch.Tensor
    """Squared weight that it explains; larger is better."""


def _fit(groups: torch.Tensor, scale: torch.Tensor, counts: torch.Tensor | None) -> _Fit:
    """Round [group_size, num_groups] to codes with this scale, then fit the scale to the codes.

    ``counts`` is what the error of each weight counts, of the shape of ``groups``.
    """
    codes = _codes(groups, scale)
    values = _table(groups.device).index_select(0, codes.view(-1).int()).view(groups.shape)
    counted = values if counts is None else values * counts
    along, squares = tree_sum_(counted * groups), tree_sum_(values.mul_(counted))
    # Groups of zeros alone have codes of zero.
    fitted = torch.where(squares > 0, along / squares.clamp(min=1e-30), torch.zeros_like(scale))
    return _Fit(scale=fitted, explained=fitted * along)


def _better(first: _Fit, second: _Fit) -> _Fit:
    wins = second.explained > first.explained
    return _Fit(
        scale=torch.where(wins, second.scale, first.scale),
        explained=torch.where(wins, second.explained, first.explained),
    )


def _codes(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the codes, uint8 [group_size, num_groups], nearest to weights by these scales."""
    inverse = torch.where(scale == 0, torch.zeros_like(scale), 1.0 / scale)
    return nearest_codes((groups * inverse).clamp_(-1, 1).view(-1)).view(groups.shape)


def nearest_codes(scaled: torch.Tensor) -> torch.Tensor:
    """Return the number of midpoints below each value of ``scaled`` (in -1..1) as uint8.

    Equal to ``torch.bucketize`` over the midpoints and several times as fast: a table gives the
    count at the left edge of a narrow cell, one comparison settles the rest.
    """
    counts, midpoints = _cell_tables(scaled.device)
    cell = ((scaled + 1.0) * (_CELLS / 2)).to(torch.int32)
    passed = scaled > midpoints.index_select(0, cell)
    return counts.index_select(0, cell) + passed


@cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.tensor(NF4_CODES, device=device)


@cache
def _cell_tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return midpoints below each cell (uint8) and the midpoint to compare with (float32)."""
    with CPU:  # a copy is complete for every stream that will read it, what a GPU computes is not
        table = torch.tensor(NF4_CODES)
        midpoints = (table[:-1] + table[1:]) / 2
        # A cell number is rounded, so a value may land one rounding error outside its cell: the
        # edge moves left by more than that error, which is far from the distance of midpoints.
        edges = torch.arange(_CELLS + 1) * (2.0 / _CELLS) - 1.0 - 1e-5
        counts = torch.bucketize(edges, midpoints)
        padded = torch.cat((midpoints, torch.tensor([float("inf")])))
    return counts.to(torch.uint8).to(device), padded[counts].to(device)
