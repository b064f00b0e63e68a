"""Four-bit codes with a scale and a zero point for each group: the grid of our INT4.

GPTQ and AWQ pack eight codes into an int32, each in its own order, with inputs before outputs. Some
rows of Hugging Face's matrix are thus columns of what is stored: the packed numbers of a whole
matrix (half a byte a weight) are read at once, and kept while its rows are asked for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format.schemes import GROUP_SIZES, Scheme
from zse.quantize.finite import check_finite
from zse.quantize.packing import pack_int4
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import Part

CODES_PER_INT = 8
_KEPT = 2
"""Matrices whose packed numbers are in memory: chunks of one and of the next run side by side."""
_SCALES = ("F16", "BF16", "F32")


class CodeOrder(Protocol):
    """How codes and zero points lie in int32."""

    inputs_per_int: int
    """8: an int has eight inputs of one output; 1: one input of eight outputs."""

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of the codes, [stop - start, K] of int32."""
        ...

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        """Return zero points [K/G, N] of [K/G, N/8]."""
        ...


@record
class _Numbers:
    """What is stored of one matrix."""

    packed: torch.Tensor
    zeros: torch.Tensor
    """[N, K/G]"""
    scales: torch.Tensor
    """[N, K/G] float32"""


class LatestNumbers:
    """The stored numbers of the matrices that were last asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Int4Matrix, _Numbers] = {}

    def of(self, matrix: Int4Matrix) -> _Numbers:
        with self._lock:  # others wait: they want the same
            numbers = self._found.pop(matrix, None) or matrix.read_numbers()
            self._found[matrix] = numbers
            while len(self._found) > _KEPT:
                del self._found[next(iter(self._found))]
            return numbers


class Int4Matrix:
    """A matrix of four-bit codes.

    Args:
        parts: The tensors, by how their names end.
        order: How codes lie in them.
        group_size: Inputs that share a scale; -1: all of a row.
        latest: Shared by all matrices of a checkpoint.

    Raises:
        CheckpointError: Shapes do not fit together, or an input has a group that is none.
        UnsupportedModelError: A dtype or the group size is not known.
    """

    def __init__(
        self, parts: Mapping[str, Part], order: CodeOrder, group_size: int, latest: LatestNumbers
    ) -> None:
        self._parts = parts
        self._order = order
        self._latest = latest
        self.shape = self._checked_shape(group_size)
        self.group_size = self.shape[1] if group_size == -1 else group_size
        self._is_ordered = self._check_groups()

    @property
    def int4_group(self) -> int:
        """Size of our groups that hold the same codes; 0 where inputs of a group are scattered."""
        if not self._is_ordered:
            return 0
        return next(size for size in GROUP_SIZES if self.group_size % size == 0)

    def read_numbers(self) -> _Numbers:
        """Read all that is stored.

        Raises:
            CheckpointError: A file is shorter than its header says.
        """
        zeros = self._order.zeros(self._parts["qzeros"].read())
        scales = self._parts["scales"].read().float()
        return _Numbers(
            packed=self._parts["qweight"].read(),
            zeros=zeros.t().contiguous(),
            scales=scales.t().contiguous(),
        )

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32: code minus zero point, times scale."""
        numbers = self._latest.of(self)
        codes = self._order.codes(numbers.packed, start, stop)
        centered = codes - self._of_inputs(numbers.zeros[start:stop])
        return centered * self._of_inputs(numbers.scales[start:stop])

    def read_int4(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return qweight with the same codes, and scale_zero: both numbers rounded to float16.

        Raises:
            ConversionError: A scale or an offset is above the range of float16.
        """
        numbers = self._latest.of(self)
        codes = self._order.codes(numbers.packed, start, stop).to(torch.uint8)
        scale = numbers.scales[start:stop]
        offset = -numbers.zeros[start:stop] * scale
        pairs = torch.stack((scale.half(), offset.half()), dim=2).view(torch.int32).squeeze(2)
        pairs = pairs.repeat_interleave(self.group_size // self.int4_group, dim=1)
        parts = {"qweight": pack_int4(codes.contiguous(), self.int4_group), "scale_zero": pairs}
        return check_finite(parts, Scheme.INT4)

    def _checked_shape(self, group_size: int) -> tuple[int, int]:
        packed, scales = self._parts["qweight"].tensor, self._parts["scales"].tensor
        if len(packed.shape) != 2 or len(scales.shape) != 2:
            raise CheckpointError(
                f"tensors {packed.name} and {scales.name} have shapes {list(packed.shape)} and "
                f"{list(scales.shape)}; expected two dimensions",
                hint="Check that config.json belongs to this checkpoint.",
            )
        rows = scales.shape[1]
        columns = packed.shape[0] * self._order.inputs_per_int
        size = columns if group_size == -1 else group_size
        if size < 1 or size % GROUP_SIZES[-1] or columns % size:
            raise UnsupportedModelError(
                f"{packed.name} has rows of {columns} numbers in groups of {size}; expected groups "
                f"of a multiple of {GROUP_SIZES[-1]} that divide a row",
                hint="Convert the checkpoint that was not quantized.",
            )
        if rows < 1 or rows % CODES_PER_INT:
            raise CheckpointError(f"{scales.name} has {rows} columns; expected a multiple of 8")
        groups = columns // size
        outputs_per_int = CODES_PER_INT // self._order.inputs_per_int
        self._parts["qweight"].expect(((packed.shape[0], rows // outputs_per_int),), "I32")
        self._parts["qzeros"].expect(((groups, rows // CODES_PER_INT),), "I32")
        self._parts["scales"].expect(((groups, rows),), *_SCALES)
        return rows, columns

    def _check_groups(self) -> bool:
        """Return whether inputs of one group lie together, in the order of groups."""
        if "g_idx" not in self._parts:
            return True
        part, columns = self._parts["g_idx"], self.shape[1]
        part.expect(((columns,),), "I32")
        found, groups = part.read(), columns // self.group_size
        if int(found.min()) < 0 or int(found.max()) >= groups:
            raise CheckpointError(
                f"tensor {part.tensor.name} has groups {int(found.min())} to {int(found.max())}; "
                f"expected 0 to {groups - 1}",
                hint="Download the checkpoint again: it is damaged.",
            )
        return torch.equal(found, torch.arange(columns, dtype=torch.int32) // self.group_size)

    def _of_inputs(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return [rows, K] of the numbers of groups, [rows, K/G]."""
        if self._is_ordered:
            return numbers.repeat_interleave(self.group_size, dim=1)
        return numbers.index_select(1, self._parts["g_idx"].read())


def unpacked_columns(packed: torch.Tensor, shifts: tuple[int, ...]) -> torch.Tensor:
    """Return [rows, 8 * ints] of [rows, ints]: eight columns of each, at these bits."""
    nibbles = (packed.unsqueeze(2) >> torch.tensor(shifts, dtype=torch.int32)) & 15
    return nibbles.view(packed.shape[0], -1)
