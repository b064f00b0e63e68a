"""NF4: sixteen quantiles of a normal distribution, one float16 maximum a group.

The codes are those of bitsandbytes for the same groups: the weight is multiplied by the float32
reciprocal of the group's largest absolute value, and the nearest table entry is the number of
midpoints below it. The order of nibbles in a byte is ours (see ``packing``).
"""

from __future__ import annotations

from functools import cache

import torch

from zse.format.nf4 import NF4_CODES
from zse.format.spec import Scheme
from zse.quantize.packing import pack_int4, unpack_int4
from zse.quantize.scheme import check_finite
from zse.records import record

_CELLS = 128  # narrower than the smallest gap between midpoints, so a cell holds at most one


@record
class NF4:
    """Four-bit normal-float groups along K.

    Attributes:
        group_size: Weights that share a maximum: 128, 64 or 32.
    """

    group_size: int = 64

    @property
    def scheme(self) -> Scheme:
        return Scheme.NF4

    def quantize_blocks(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Quantize [num_rows, K] float32 to qweight uint8 [num_rows, K/2], absmax float16."""
        num_rows, columns = rows.shape
        groups = rows.reshape(-1, self.group_size)
        absmax = groups.abs().amax(1)  # [num_groups]
        scaled = (groups * (1.0 / absmax.clamp(min=1e-38)).unsqueeze(1)).clamp_(-1, 1)
        codes = nearest_codes(scaled.view(-1)).view(num_rows, columns)
        stored = absmax.half().view(num_rows, columns // self.group_size)
        parts = {"qweight": pack_int4(codes, self.group_size), "absmax": stored}
        return check_finite(parts, self.scheme)

    def dequantize_blocks(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return [num_rows, K] float32."""
        codes = unpack_int4(parts["qweight"], self.group_size)
        num_rows, columns = codes.shape
        values = torch.tensor(NF4_CODES)[codes.int()].view(num_rows, -1, self.group_size)
        return (values * parts["absmax"].float().unsqueeze(2)).view(num_rows, columns)


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
