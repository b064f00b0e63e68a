"""NF4: sixteen quantiles of a normal distribution, one float16 maximum a group.

The codes are those of bitsandbytes for the same groups: the weight is multiplied by the float32
reciprocal of the group's largest absolute value, and the nearest table entry is the number of
midpoints below it. The order of nibbles in a byte is ours (see ``packing``).
"""

from __future__ import annotations

from functools import cache

import torch

from zse.format.nf4 import NF4_CODES
from zse.quantize.packing import pack_int4

_CELLS = 128  # narrower than the smallest gap between midpoints, so a cell holds at most one


def quantize_nf4(rows: torch.Tensor, group_size: int) -> dict[str, torch.Tensor]:
    """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], absmax float16.

    The maxima are [num_rows, K/G] for groups of G along K.
    """
    num_rows, columns = rows.shape
    groups = rows.reshape(-1, group_size)
    absmax = groups.abs().amax(1)  # [num_groups]
    scaled = (groups * (1.0 / absmax.clamp(min=1e-38)).unsqueeze(1)).clamp_(-1, 1)
    codes = nearest_codes(scaled.view(-1)).view(num_rows, columns)
    stored = absmax.half().view(num_rows, columns // group_size)
    return {"qweight": pack_int4(codes, group_size), "absmax": stored}


def nearest_codes(scaled: torch.Tensor) -> torch.Tensor:
    """Return the number of midpoints below each value of ``scaled`` (in -1..1) as uint8.

    Equal to ``torch.bucketize`` over the midpoints and several times as fast: a table gives the
    count at the left edge of a narrow cell, one comparison settles the rest.
    """
    counts, midpoints = _cell_tables()
    scaled = torch.nan_to_num(scaled)  # reported through absmax, which is not finite either
    cell = ((scaled + 1.0) * (_CELLS / 2)).to(torch.int32)
    passed = scaled > midpoints.index_select(0, cell)
    return counts.index_select(0, cell) + passed


@cache
def _cell_tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Return midpoints below each cell (uint8) and the midpoint to compare with (float32)."""
    table = torch.tensor(NF4_CODES)
    midpoints = (table[:-1] + table[1:]) / 2
    # A cell number is rounded, so a value may land one rounding error outside its cell: the edge
    # moves left by more than that error, which is far from the distance between midpoints.
    edges = torch.arange(_CELLS + 1) * (2.0 / _CELLS) - 1.0 - 1e-5
    counts = torch.bucketize(edges, midpoints)
    padded = torch.cat((midpoints, torch.tensor([float("inf")])))
    return counts.to(torch.uint8), padded[counts]
