"""NL4: sixteen uneven whole numbers, and a scale of eight bits with a sign for 16 or 32 weights.

Scales lie on a coarse grid, a twelfth apart, so none is fitted: each group tries the scales from
the one that just clips its largest weight upwards, with both signs, and keeps what leaves the least
squared error. Gaussian weights lose 6.7% of their norm with groups of 16 (4.5 bits a weight), where
GGUF's Q4_K of as many bits loses 7.2; the price is eight rounds where rounding once takes one.
"""

from __future__ import annotations

from functools import cache

import torch

from zse.errors import ConversionError
from zse.format.as_torch import scale_of_minifloat
from zse.format.nl4 import MAX_SCALE, NL4_CODES, SCALE_BIAS
from zse.format.schemes import PACKED_COLUMNS, Scheme
from zse.quantize.finite import check_finite
from zse.quantize.packing import divided, pack_int4, tree_sum_
from zse.quantize.place_of_work import CPU
from zse.records import record

_LARGEST_LEVEL = 127
_LARGEST_SCALE = 127
"""Stored, without its sign."""
_STEPS = 4
"""Scales tried of each sign."""
_SIGN = 128


def quantize_nl4(
    rows: torch.Tensor, group_size: int, importance: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], signed_scale uint8.

    Scales are [num_rows, K/G] for groups of G along K. ``importance`` is [K] float32 above 0: what
    the squared error of an input's weights counts; None: all alike.

    Raises:
        ConversionError: A group's largest weight is not finite, or more than a scale reaches.
    """
    num_rows, columns = rows.shape
    # [group_size, num_groups]: an operation on one number a group is then one on plain vectors.
    groups = rows.reshape(-1, group_size).t().contiguous()
    largest = groups.abs().amax(0)
    check_finite({"largest weight": largest}, Scheme.NL4)
    _check_range(largest)
    # The bits of a float32 down to its third of mantissa count scales; this one is rounded down.
    lowest = (divided(largest, _LARGEST_LEVEL).view(torch.int32) >> 20) - ((127 - SCALE_BIAS) << 3)
    counts = None
    if importance is not None:
        counts = importance.reshape(-1, group_size).t().repeat(1, num_rows)
    best: _Fit | None = None
    for sign in (0, _SIGN):
        for step in range(_STEPS):
            fit = _fit(groups, (lowest + step).clamp_(0, _LARGEST_SCALE) | sign, counts)
            best = fit if best is None else _better(best, fit)
    assert best is not None
    codes = _codes_of_cells(rows.device).index_select(0, _cells(groups, best.scale).view(-1))
    flat = codes.view(groups.shape).t().reshape(num_rows, columns)
    return {
        "qweight": pack_int4(flat, max(group_size, PACKED_COLUMNS)),
        "signed_scale": best.scale.to(torch.uint8).view(num_rows, columns // group_size),
    }


@record
class _Fit:
    """The best scale of each of num_groups groups, and what it leaves."""

    scale: torch.Tensor
    """As it is stored."""
    error: torch.Tensor


def _fit(groups: torch.Tensor, scale: torch.Tensor, counts: torch.Tensor | None) -> _Fit:
    """Return the squared error of groups [group_size, num_groups] at these scales.

    ``counts`` is of the shape of groups: what each square counts.
    """
    cells = _cells(groups, scale).view(-1)
    levels = _levels_of_cells(groups.device).index_select(0, cells).view(groups.shape)
    rest = levels.mul_(-scale_of_minifloat(scale)).add_(groups)
    squares = rest.square_()
    if counts is not None:
        squares.mul_(counts)
    return _Fit(scale=scale, error=tree_sum_(squares))


def _better(first: _Fit, second: _Fit) -> _Fit:
    wins = second.error < first.error
    return _Fit(
        scale=torch.where(wins, second.scale, first.scale),
        error=torch.where(wins, second.error, first.error),
    )


def _cells(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the half steps that weights fall into, 0 to 511.

    The middle of two levels is a whole number of half steps, so a cell has one nearest level.
    """
    halves = groups * (2 / scale_of_minifloat(scale))
    return halves.floor_().clamp_(-256, 255).add_(256).int()


@cache
def _codes_of_cells(device: torch.device) -> torch.Tensor:
    with CPU:  # a copy is complete for every stream that will read it, what a GPU computes is not
        middles = (torch.arange(512) - 256 + 0.5) / 2
        codes = (middles.unsqueeze(1) - torch.tensor(NL4_CODES)).abs().argmin(1)
    return codes.to(torch.uint8).to(device)


@cache
def _levels_of_cells(device: torch.device) -> torch.Tensor:
    with CPU:
        levels = torch.tensor(NL4_CODES, dtype=torch.float32)
    return levels.index_select(0, _codes_of_cells(CPU).int()).to(device)


def _check_range(largest: torch.Tensor) -> None:
    limit = _LARGEST_LEVEL * MAX_SCALE
    found = float(largest.max())
    if found > limit:
        raise ConversionError(
            f"a weight of magnitude {found:g} is above the range of scheme {Scheme.NL4}, {limit:g}",
            hint="Choose --quant int4 or int8.",
        )
