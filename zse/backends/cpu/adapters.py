"""Adapters as the processor's kernels read them: float32, the second matrix turned."""

from __future__ import annotations

from array import array
from math import isfinite
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import address_of
from zse.errors import LoRAError
from zse.kernels.native import codes, structs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.adapters import AdaptedMatrix, AdapterWeights, LowRank, PlainMatrix
    from zse.kernels.native.library import Library


class NativeAdapter:
    """An adapter in this process's memory, which is given back with the object.

    Args:
        adapter: What it adds.
        matrices: That it may add to, in the order of their numbers: a stack has one for each of
            its matrices.
        library: The kernels.

    Raises:
        LoRAError: A number in it is not finite.
    """

    def __init__(
        self, adapter: AdapterWeights, matrices: Sequence[AdaptedMatrix], library: Library
    ) -> None:
        self._name = adapter.name
        self._library = library
        self._kept: list[object] = []
        """What the addresses point into."""
        each = [
            parts
            for matrix in matrices
            for parts in matrix.by_member(adapter.parts.get(matrix.name, ()))
        ]
        table = (structs.Adaptation * len(each))()
        for place, parts in enumerate(each):
            native = (structs.LowRank * len(parts))(*map(self._part, parts))
            self._kept.append(native)
            table[place] = structs.Adaptation(parts=native, num_parts=len(parts))
        self._table = table
        self.address = address_of(memoryview(table))
        """Of an array of ``struct zse_adaptation``, one a number."""

    def _part(self, part: LowRank) -> structs.LowRank:
        down, up = self._floats(part.down), self._floats(part.up)
        rank = part.rank
        turned = array("f")
        for column in range(rank):
            turned.extend(up[column::rank])
        self._kept += (down, turned)
        return structs.LowRank(
            down=down.buffer_info()[0],
            up=turned.buffer_info()[0],
            first_row=part.first_row,
            rows=part.up.rows,
            rank=rank,
            scale=part.scale,
        )

    def _floats(self, matrix: PlainMatrix) -> array[float]:
        count = matrix.rows * matrix.columns
        numbers = array("f", bytes(4 * count))
        stored = memoryview(matrix.data)
        scheme = codes.Scheme[matrix.scheme.name]
        self._library.widen(address_of(stored), scheme, count, numbers.buffer_info()[0])
        if not isfinite(sum(numbers)):  # in float64: finite ones have a finite sum
            raise LoRAError(f"the adapter '{self._name}' holds numbers that are not finite")
        return numbers
