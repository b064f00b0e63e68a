"""The values that codes may stand for once scales are known: a column of a matrix at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from zse.format.as_torch import scale_of_minifloat
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES
from zse.format.schemes import PACKED_COLUMNS, Scheme
from zse.quantize import int8
from zse.quantize.nf4 import nearest_codes
from zse.quantize.packing import narrow_codes, pack_int4

if TYPE_CHECKING:
    from collections.abc import Callable

    Parts = dict[str, torch.Tensor]


class Grid(Protocol):
    """The values that are near."""

    dtype: torch.dtype
    """Of codes."""

    def nearest(self, weights: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes nearest to a column's weights [num_rows], and their values."""

    def parts(self, codes: torch.Tensor) -> Parts:
        """Return codes [num_rows, K] as a file has them, with the scales."""


class WholeGrid:
    """``code * scale + offset``, of a code of some bits."""

    dtype = torch.uint8

    def __init__(self, bits: int, parts: Parts, group_size: int) -> None:
        self._parts, self._group_size, self._bits = parts, group_size, bits
        self._most = (1 << bits) - 1
        pairs = parts["scale_zero"].contiguous().view(torch.float16).float()
        scale, offset = pairs.view(*parts["scale_zero"].shape, 2).unbind(2)
        self._scale, self._offset = scale.t().contiguous(), offset.t().contiguous()
        self._inverse = torch.where(self._scale != 0, 1 / self._scale, 0.0)

    def nearest(self, weights: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
        group = column // self._group_size
        offset = self._offset[group]
        codes = (weights - offset).mul_(self._inverse[group]).round_().clamp_(0, self._most)
        return codes, torch.addcmul(offset, codes, self._scale[group])

    def parts(self, codes: torch.Tensor) -> Parts:
        packed = pack_int4(codes.contiguous(), self._group_size)
        return {**self._parts, "qweight": narrow_codes(packed, self._bits)}


class Nf4Grid:
    """A value of the table times the group's scale."""

    dtype = torch.uint8

    def __init__(self, parts: Parts, group_size: int) -> None:
        self._parts, self._group_size = parts, group_size
        self._scale = parts["absmax"].float().t().contiguous()
        self._inverse = torch.where(self._scale != 0, 1 / self._scale, 0.0)
        self._table = torch.tensor(NF4_CODES, device=self._scale.device)

    def nearest(self, weights: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
        group = column // self._group_size
        codes = nearest_codes((weights * self._inverse[group]).clamp_(-1, 1))
        return codes, self._table[codes.int()].mul_(self._scale[group])

    def parts(self, codes: torch.Tensor) -> Parts:
        return {**self._parts, "qweight": pack_int4(codes.contiguous(), self._group_size)}


class Nl4Grid:
    """A whole number of the table times the group's scale."""

    dtype = torch.uint8

    def __init__(self, parts: Parts, group_size: int) -> None:
        self._parts, self._group_size = parts, group_size
        scale = scale_of_minifloat(parts["signed_scale"].int())
        self._scale = scale.t().contiguous()
        self._inverse = torch.where(self._scale != 0, 1 / self._scale, 0.0)
        self._table = torch.tensor(NL4_CODES, dtype=torch.float32, device=scale.device)
        self._middles = (self._table[1:] + self._table[:-1]) / 2

    def nearest(self, weights: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
        group = column // self._group_size
        codes = torch.bucketize(weights * self._inverse[group], self._middles)
        return codes, self._table[codes].mul_(self._scale[group])

    def parts(self, codes: torch.Tensor) -> Parts:
        size = max(self._group_size, PACKED_COLUMNS)
        return {**self._parts, "qweight": pack_int4(codes.contiguous(), size)}


class Int8Grid:
    """A whole number times the row's scale."""

    dtype = torch.int8

    def __init__(self, parts: Parts) -> None:
        self._parts, self._scale = parts, parts["scale"]
        self._inverse = torch.where(self._scale != 0, 1 / self._scale, 0.0)

    def nearest(self, weights: torch.Tensor, _column: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = (weights * self._inverse).round_().clamp_(-int8.MAX_CODE, int8.MAX_CODE)
        return codes, codes * self._scale

    def parts(self, codes: torch.Tensor) -> Parts:
        return {**self._parts, "qweight": codes.contiguous()}


_GRIDS: dict[Scheme, Callable[[Parts, int], Grid]] = {
    Scheme.INT4: partial(WholeGrid, 4),
    Scheme.INT3: partial(WholeGrid, 3),
    Scheme.INT2: partial(WholeGrid, 2),
    Scheme.NF4: Nf4Grid,
    Scheme.NL4: Nl4Grid,
    Scheme.INT8: lambda parts, _group_size: Int8Grid(parts),
}
SCHEMES = frozenset(_GRIDS)
"""Schemes whose codes can be chosen with feedback."""


def grid_of(scheme: Scheme, parts: Parts, group_size: int) -> Grid:
    """Return the grid of some rows, whose parts by role have its scales."""
    return _GRIDS[scheme](parts, group_size)
