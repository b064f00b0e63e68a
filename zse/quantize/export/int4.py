"""INT4 of a file as compressed-tensors packs it: the same codes, with whole zero points.

Files have an offset for each group, so that zero may lie between two codes; compressed-tensors has
a code for zero. Groups of checkpoints that came quantized have one: nothing is lost. Others are
shifted by less than half a step; their codes stay. Where zero lies beyond all codes, the group gets
a grid that begins or ends with zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.format.as_torch import bytes_from, split_scale_zero, unpack_nibbles
from zse.format.schemes import Scheme
from zse.quantize.formats.bits import ints_for, pack_bits
from zse.quantize.pieces import CHUNK_ELEMENTS
from zse.quantize.source_rows import in_checkpoint_order, rows_together
from zse.quantize.stored import stored_matrix
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from zse.format.reader import ZSEReader
    from zse.models.weights import Source, WeightSpec
    from zse.quantize.stored import StoredMatrix

BITS = 4
MIDDLE = 8
"""The code that stands for zero where no other is said."""
_LAST_CODE = 15


@record
class Grid:
    """Rows of INT4 with whole zero points: ``(codes - zeros) * scales``."""

    codes: torch.Tensor
    """uint8 [rows, K]"""
    scales: torch.Tensor
    """float16 [rows, groups]"""
    zeros: torch.Tensor
    """int32 [rows, groups], 0 to 15"""
    is_same: torch.Tensor
    """bool [rows, groups]: whether a group stands for the very numbers of the file."""


def whole_grid(codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor) -> Grid:
    """Return the grid of groups of codes [rows, groups, size] with scales and offsets."""
    has_slope = scales != 0
    zeros = torch.where(has_slope, -offsets / torch.where(has_slope, scales, 1.0), -1.0).round()
    fits = (zeros >= 0) & (zeros <= _LAST_CODE)
    is_same = fits & ((-zeros * scales).half() == offsets.half())
    if not bool(fits.all()):
        values = codes.float() * scales.unsqueeze(2) + offsets.unsqueeze(2)
        ends, steps = _one_sided(values)
        anew = (values / steps.unsqueeze(2)).round() + ends.unsqueeze(2)
        codes = torch.where(fits.unsqueeze(2), codes, anew.clamp(0, _LAST_CODE).to(torch.uint8))
        scales, zeros = torch.where(fits, scales, steps), torch.where(fits, zeros, ends)
    return Grid(codes=codes.flatten(1), scales=scales.half(), zeros=zeros.int(), is_same=is_same)


def _one_sided(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return zero points and steps of grids of groups that lie on one side of zero."""
    high, low = values.amax(2).clamp(min=0), (-values.amin(2)).clamp(min=0)
    ends = torch.where(high >= low, 0.0, float(_LAST_CODE))
    steps = (torch.maximum(high, low) / _LAST_CODE).half().float()
    return ends, steps.clamp(min=2.0**-24)


class Int4Piece:
    """A matrix of the checkpoint that a file has in INT4.

    Args:
        stored: The weight that it is a piece of, as the file has it.
        source: The piece.
        first_row: Of the piece within the weight.
    """

    def __init__(self, stored: StoredMatrix, source: Source, first_row: int) -> None:
        self._stored, self._source = stored, source
        self._first_row = first_row
        self.module = source.name.removesuffix(".weight")
        self.group_size = stored.entry.group_size
        self.shifted_groups = 0
        """Groups whose numbers are not those of the file; known when they are written."""

    def is_even(self) -> bool:
        """Whether zero is the middle code of every group, so that it need not be written."""
        rows = self._stored.rows(self._first_row, self._first_row + self._source.rows)
        scales, offsets = split_scale_zero(rows.parts["scale_zero"])
        return bool((offsets == -MIDDLE * scales).all())

    @property
    def num_groups(self) -> int:
        return self._source.rows * self._source.columns // self.group_size

    def tensors(self, *, is_even: bool) -> list[MadeTensor]:
        """Return the tensors that stand for it, without zero points where all are even."""
        rows, columns = self._source.rows, self._source.columns
        groups, base = columns // self.group_size, f"{self.module}.weight"
        made = [
            MadeTensor(f"{base}_packed", "I32", (rows, ints_for(columns, BITS)), self._packed),
            MadeTensor(f"{base}_scale", "F16", (rows, groups), self._scales),
            MadeTensor(f"{base}_shape", "I64", (2,), self._shape),
        ]
        zeros = (ints_for(rows, BITS), groups)
        if not is_even:
            made.append(MadeTensor(f"{base}_zero_point", "I32", zeros, self._zeros))
        return made

    def _packed(self) -> Iterator[torch.Tensor]:
        self.shifted_groups = 0
        for grid in self._grids():
            self.shifted_groups += int((~grid.is_same).sum())
            yield pack_bits(grid.codes, BITS)

    def _scales(self) -> Iterator[torch.Tensor]:
        return (grid.scales for grid in self._grids())

    def _zeros(self) -> Iterator[torch.Tensor]:
        zeros = torch.cat([grid.zeros for grid in self._grids()])
        yield pack_bits(zeros.t(), BITS).t()

    def _shape(self) -> Iterator[torch.Tensor]:
        yield torch.tensor([self._source.rows, self._source.columns])

    def _grids(self) -> Iterator[Grid]:
        """Return its rows, some at a time, in the order of the checkpoint."""
        source, together = self._source, rows_together(self._source)
        count = max(1, CHUNK_ELEMENTS // (source.columns * together)) * together
        for start in range(0, source.rows, count):
            stop = min(start + count, source.rows)
            some = self._stored.rows(self._first_row + start, self._first_row + stop)
            scales, offsets = split_scale_zero(self._in_order(some.parts["scale_zero"]))
            codes = self._in_order(some.parts["qweight"])
            yield whole_grid(unpack_nibbles(codes, self.group_size), scales, offsets)

    def _in_order(self, part: torch.Tensor) -> torch.Tensor:
        return in_checkpoint_order(part, self._source)


class MadeTensor:
    """A tensor that is computed some rows at a time."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        make: Callable[[], Iterator[torch.Tensor]],
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self._make = make

    def chunks(self) -> Iterator[memoryview]:
        """Return its bytes, in order."""
        return (bytes_from(part) for part in self._make())


def int4_pieces(reader: ZSEReader, weights: Iterable[WeightSpec]) -> dict[str, list[Int4Piece]]:
    """Return the matrices that a file has in INT4, by the name of the weight they are pieces of."""
    found: dict[str, list[Int4Piece]] = {}
    for weight in weights:
        stored = stored_matrix(reader, weight.name)
        if stored.entry.scheme is not Scheme.INT4 or not _has_rows_of_inputs(weight):
            continue
        first_row = 0
        for source in weight.pieces():
            piece = Int4Piece(stored, source, first_row)
            found.setdefault(weight.name, []).append(piece)
            first_row += source.rows
    return found


def _has_rows_of_inputs(weight: WeightSpec) -> bool:
    """Whether the matrices of a weight are as linear layers have them."""
    is_plain = weight.factor == 1.0 and not weight.offset
    return is_plain and not any(
        source.is_transposed or source.packing is not None or len(source.shape) != 2
        for source in weight.sources
    )
