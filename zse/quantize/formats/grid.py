"""Codes with a scale and a zero point for each group, as GPTQ and AWQ have them.

Both pack codes into int32, each in its own order, with inputs before outputs. Some rows of Hugging
Face's matrix are thus columns of what is stored: the packed numbers of a whole matrix (of four
bits: half a byte a weight) are read at once, and kept while its rows are asked for. Codes of four
bits are those of our INT4.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format.schemes import GROUP_SIZES
from zse.quantize.formats.bits import INT_BITS, ints_for
from zse.quantize.formats.kept import int4_parts, packing_in_groups
from zse.quantize.formats.matrix import KeptMatrix
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.weights import Packing
    from zse.quantize.formats.matrix import Part

_KEPT = 2
"""Matrices whose packed numbers are in memory: chunks of one and of the next run side by side."""
_SCALES = ("F16", "BF16", "F32")


class CodeOrder(Protocol):
    """How codes and zero points lie in int32."""

    bits: int
    """Of a code and of a zero point."""
    packs_inputs: bool
    """Whether an int has inputs of one output; else it has one input of several outputs."""

    def codes(self, packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of the codes, [stop - start, K] int32."""
        ...

    def zeros(self, packed: torch.Tensor) -> torch.Tensor:
        """Return zero points [K/G, N] of those that are packed."""
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
        self._found: dict[GridMatrix, _Numbers] = {}

    def of(self, matrix: GridMatrix) -> _Numbers:
        with self._lock:  # others wait: they want the same
            numbers = self._found.pop(matrix, None) or matrix.read_numbers()
            self._found[matrix] = numbers
            while len(self._found) > _KEPT:
                del self._found[next(iter(self._found))]
            return numbers


class GridMatrix(KeptMatrix):
    """A matrix of codes.

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
    def packing(self) -> Packing | None:
        """INT4 where it holds the same codes: four bits, and inputs of a group lie together."""
        if not self._is_ordered or self._order.bits != 4:
            return None
        return packing_in_groups("int4", self.group_size)

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

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return INT4 with the same codes: both numbers of a group rounded to float16.

        Raises:
            ConversionError: A scale or an offset is above the range of float16.
        """
        assert self.packing is not None
        numbers = self._latest.of(self)
        codes = self._order.codes(numbers.packed, start, stop)
        return int4_parts(
            codes, numbers.zeros[start:stop], numbers.scales[start:stop], self.packing
        )

    def _checked_shape(self, group_size: int) -> tuple[int, int]:
        packed, scales = self._parts["qweight"].tensor, self._parts["scales"].tensor
        if len(packed.shape) != 2 or len(scales.shape) != 2:
            raise CheckpointError(
                f"tensors {packed.name} and {scales.name} have shapes {list(packed.shape)} and "
                f"{list(scales.shape)}; expected two dimensions",
                hint="Check that config.json belongs to this checkpoint.",
            )
        rows, bits = scales.shape[1], self._order.bits
        columns = packed.shape[0]
        if self._order.packs_inputs:
            columns = columns * INT_BITS // bits
        size = columns if group_size == -1 else group_size
        if size < 1 or size % GROUP_SIZES[-1] or columns % size:
            raise UnsupportedModelError(
                f"{packed.name} has rows of {columns} numbers in groups of {size}; expected groups "
                f"of a multiple of {GROUP_SIZES[-1]} that divide a row",
                hint="Convert the checkpoint that was not quantized.",
            )
        if rows < 1 or rows * bits % INT_BITS:
            raise CheckpointError(
                f"{scales.name} has {rows} columns; expected codes of {bits} bits to fill int32"
            )
        groups = columns // size
        shape = (columns, ints_for(rows, bits))
        if self._order.packs_inputs:
            shape = (ints_for(columns, bits), rows)
        self._parts["qweight"].expect((shape,), "I32")
        self._parts["qzeros"].expect(((groups, ints_for(rows, bits)),), "I32")
        self._parts["scales"].expect(((groups, rows),), *_SCALES)
        return rows, columns

    def _check_groups(self) -> bool:
        """Return whether inputs of one group lie together, in the order of groups."""
        part = self._parts.get("g_idx")
        return part is None or has_groups_in_order(part, self.shape[1], self.group_size)

    def _of_inputs(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return [rows, K] of the numbers of groups, [rows, K/G]."""
        if self._is_ordered:
            return numbers.repeat_interleave(self.group_size, dim=1)
        return numbers.index_select(1, self._parts["g_idx"].read())


def has_groups_in_order(part: Part, columns: int, group_size: int) -> bool:
    """Return whether inputs of one group lie together, by the tensor of each input's group.

    Raises:
        CheckpointError: An input has a group that is none.
        UnsupportedModelError: They are of another dtype.
    """
    part.expect(((columns,),), "I32")
    found, groups = part.read(), columns // group_size
    if int(found.min()) < 0 or int(found.max()) >= groups:
        raise CheckpointError(
            f"tensor {part.tensor.name} has groups {int(found.min())} to {int(found.max())}; "
            f"expected 0 to {groups - 1}",
            hint="Download the checkpoint again: it is damaged.",
        )
    return torch.equal(found, torch.arange(columns, dtype=torch.int32) // group_size)
