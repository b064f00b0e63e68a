"""Whole numbers with scales, rows as Hugging Face has them: packed into int32, or a byte each.

What compressed-tensors makes of INT4 and INT8. Four bits in groups, or with one scale a row, are
codes of our INT4; eight bits with one scale a row, and nothing added, those of our INT8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from zse.errors import CheckpointError
from zse.models.weights import Packing
from zse.quantize.formats.bits import INT_BITS, ints_for, unpack_bits
from zse.quantize.formats.grid import has_groups_in_order
from zse.quantize.formats.kept import int4_parts, int8_parts, packing_in_groups
from zse.quantize.formats.matrix import KeptMatrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.quantize.formats.matrix import Part

_SCALES = ("F16", "BF16", "F32")
_OF_ALL: tuple[tuple[int, ...], ...] = ((1, 1), (1,), ())
_MOST_NUMBERS = 2**60


class Integers(Protocol):
    """How whole numbers lie in tensors: from -2**(bits-1) on."""

    shape: tuple[int, int]
    bits: int
    name: str
    """Of the tensor."""

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return rows of the numbers, int32 [rows, K]."""
        ...

    def check_zeros(self, part: Part, groups: int, *, is_one: bool) -> None:
        """Refuse zero points that are of another shape or dtype than the scales ask for."""
        ...

    def read_zeros(self, part: Part, start: int, stop: int) -> torch.Tensor:
        """Return the zero points of rows, int32 [rows, groups]."""
        ...


class PackedIntegers:
    """Numbers plus half of their range, packed into int32: ``pack-quantized``.

    Args:
        parts: The tensors, by how their names end.
        bits: What they may have; the tensors say which.

    Raises:
        CheckpointError: Their shapes do not fit together.
        UnsupportedModelError: They are of another dtype.
    """

    def __init__(self, parts: Mapping[str, Part], bits: Sequence[int]) -> None:
        packed, told = parts["weight_packed"], parts["weight_shape"]
        told.expect(((2,),), "I64", "I32")
        rows, columns = map(int, told.read())
        found = packed.tensor.shape
        if min(rows, columns) < 1 or rows * columns > _MOST_NUMBERS:
            raise CheckpointError(f"tensor {told.tensor.name} says {rows} by {columns} numbers")
        shapes = {each: (rows, ints_for(columns, each)) for each in bits}
        packed.expect(tuple(shapes.values()), "I32")
        self.bits = next(each for each, shape in shapes.items() if shape == found)
        self.shape, self.name, self._packed = (rows, columns), packed.tensor.name, packed

    def read(self, start: int, stop: int) -> torch.Tensor:
        codes = unpack_bits(self._packed.read(start, stop), self.bits, self.shape[1])
        return codes - (1 << (self.bits - 1))

    def check_zeros(self, part: Part, groups: int, *, is_one: bool) -> None:  # noqa: ARG002
        part.expect(((ints_for(self.shape[0], self.bits), groups),), "I32")

    def read_zeros(self, part: Part, start: int, stop: int) -> torch.Tensor:
        # They are packed along the rows; 32 of these end with an int32.
        first = start // INT_BITS * INT_BITS
        begin, end = ints_for(first, self.bits), ints_for(stop, self.bits)
        codes = unpack_bits(part.read(begin, end).t(), self.bits, stop - first)
        return codes.t()[start - first :] - (1 << (self.bits - 1))


class PlainIntegers:
    """A byte each: ``int-quantized`` and ``naive-quantized``.

    Raises:
        CheckpointError: They are no matrix.
    """

    def __init__(self, parts: Mapping[str, Part], bits: int) -> None:
        weight = parts["weight"]
        found = weight.tensor.shape
        if len(found) != 2 or 0 in found:
            raise CheckpointError(
                f"tensor {weight.tensor.name} has shape {list(found)}; expected a matrix of INT8"
            )
        self.shape, self.bits = (found[0], found[1]), bits
        self.name, self._weight = weight.tensor.name, weight

    def read(self, start: int, stop: int) -> torch.Tensor:
        return self._weight.read(start, stop).int()

    def check_zeros(self, part: Part, groups: int, *, is_one: bool) -> None:
        shapes = _OF_ALL if is_one else _shapes_of_scales(self.shape[0], groups)
        part.expect(shapes, "I8")

    def read_zeros(self, part: Part, start: int, stop: int) -> torch.Tensor:
        return _of_rows(part, self.shape[0], start, stop).int()


class IntegerMatrix(KeptMatrix):
    """A matrix of whole numbers: each less its zero point, times its scale.

    Args:
        parts: The tensors, by how their names end.
        numbers: Those of the matrix.

    Raises:
        CheckpointError: Shapes do not fit together.
        UnsupportedModelError: A dtype is not known.
    """

    def __init__(self, parts: Mapping[str, Part], numbers: Integers) -> None:
        self._numbers, self._scale = numbers, parts["weight_scale"]
        self.shape, self.bits, self.name = numbers.shape, numbers.bits, numbers.name
        rows, columns = self.shape
        found = self._scale.tensor.shape
        groups = found[1] if len(found) == 2 and found != (1, 1) else 1
        if groups < 1 or columns % groups:
            groups = 1  # the scale's shape is refused, with the one that there may be
        self._scale.expect(
            (*_shapes_of_scales(rows, groups), *(_OF_ALL if groups == 1 else ())), *_SCALES
        )
        self.group_size = columns // groups
        self.has_one_scale = groups == 1 and self._scale.tensor.num_rows != rows
        self._zeros = parts.get("weight_zero_point")
        self.has_zeros = self._zeros is not None
        if self._zeros is not None:
            numbers.check_zeros(self._zeros, groups, is_one=self.has_one_scale)
        order = parts.get("weight_g_idx")
        is_ordered = order is None or has_groups_in_order(order, columns, self.group_size)
        self._order = None if is_ordered else order

    @property
    def packing(self) -> Packing | None:
        """INT4 of four bits; INT8 of eight with one scale a row and no zero points."""
        if self._order is not None:
            return None
        if self.bits == 4:
            return packing_in_groups("int4", self.group_size)
        is_even = self._zeros is None and self.group_size == self.shape[1]
        return Packing(scheme="int8", group_size=0) if self.bits == 8 and is_even else None

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32."""
        numbers = self._numbers.read(start, stop)
        if self._zeros is not None:
            zeros = self._numbers.read_zeros(self._zeros, start, stop)
            numbers = numbers - self._of_inputs(zeros)
        return numbers * self._of_inputs(self._scales(start, stop))

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the same codes in our scheme.

        Raises:
            ConversionError: A scale or an offset is above the range of float16.
        """
        packing, numbers = self.packing, self._numbers.read(start, stop)
        scales = self._scales(start, stop)
        if packing is None or packing.scheme == "int8":
            return int8_parts(numbers, scales[:, 0])
        half = 1 << (self.bits - 1)
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        if self._zeros is not None:
            zeros = self._numbers.read_zeros(self._zeros, start, stop)
        return int4_parts(numbers + half, zeros + half, scales, packing)

    def _scales(self, start: int, stop: int) -> torch.Tensor:
        """Return float32 [rows, groups]."""
        return _of_rows(self._scale, self.shape[0], start, stop).float()

    def _of_inputs(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return [rows, K] of the numbers of groups, [rows, groups]."""
        if self._order is None:
            return numbers.repeat_interleave(self.group_size, dim=1)
        return numbers.index_select(1, self._order.read())


def _shapes_of_scales(rows: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that numbers of groups, or of rows, may have."""
    return ((rows, groups),) if groups > 1 else ((rows, 1), (rows,))


def _of_rows(part: Part, rows: int, start: int, stop: int) -> torch.Tensor:
    """Return [rows, groups] of a tensor that has a number for each group, row, or all."""
    if part.tensor.num_rows == rows:
        return part.read(start, stop).view(stop - start, -1)
    return part.read().view(1, 1).expand(stop - start, 1)
