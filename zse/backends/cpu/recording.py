"""A list of operations as it grows: what products need before them, and what is quantized already.

A handle that a model's program passes on is the register that a result is in.
"""

from __future__ import annotations

from ctypes import pointer
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zse.kernels.native import codes, structs
from zse.kernels.native.codes import ACTIVATION_GROUP, Kind, Register, RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.adapters import AdaptedMatrix
    from zse.backends.cpu.weights import Weights
    from zse.models.spec import HeadRows

_PLAIN = frozenset({codes.Scheme.FP32, codes.Scheme.FP16, codes.Scheme.BF16})


Mark: TypeAlias = tuple[int, int, bool]
"""After so many operations, which layer that streams is entered, or left."""


class LowRankProducts(NamedTuple):
    """Which matrices adapters may add to."""

    numbers: dict[int, int]
    """Their numbers, by the identities of their structures, which live as long as the model; of a
    stack that of its first matrix."""
    columns: int
    """Of a row of ``Register.LOW_RANK``; rows of chosen experts have one each."""

    @classmethod
    def of(
        cls, matrices: Sequence[AdaptedMatrix], weights: Weights, max_rank: int
    ) -> LowRankProducts:
        """Number a model's matrices; adapters are of ``max_rank`` at most."""
        firsts = accumulate((matrix.members for matrix in matrices), initial=0)
        return cls(
            {
                id(weights.linear(matrix.linear)): first
                for matrix, first in zip(matrices, firsts, strict=False)
            },
            max((len(matrix.part_rows) for matrix in matrices), default=0) * max_rank,
        )


class Recording:
    """Operations over registers.

    Args:
        exact: Never round activations to 8 bits.
        is_part: Whether this is one of several ranks that compute a step together: products that
            ``add_up`` is told of are parts of a sum.
    """

    def __init__(self, *, exact: bool, is_part: bool = False) -> None:
        self._exact = exact
        self.is_part = is_part
        self.low_rank: LowRankProducts | None = None
        """What is recorded behind products for sequences with adapters; None: nothing."""
        self._operations: list[structs.Operation] = []
        self._marks: list[Mark] = []
        self._quantized: tuple[Register, int] | None = None
        """The register whose rows are there as int8, and the columns of their groups."""

    def take(self) -> list[structs.Operation]:
        """Return what was recorded, and begin anew."""
        operations, self._operations = self._operations, []
        self._quantized = None
        return operations

    def mark(self, number: int, *, is_entry: bool) -> None:
        """Remember that a layer that streams is entered or left here."""
        self._marks.append((len(self._operations), number, is_entry))

    def take_marks(self) -> list[Mark]:
        """Return what was marked, and begin anew."""
        marks, self._marks = self._marks, []
        return marks

    def record(
        self, kind: Kind, output: Register, *, scale: float = 1.0, **fields: Any
    ) -> Register:
        """Record an operation whose ``quantizes``, if it has any, says what it reads."""
        if self._quantized is not None and self._quantized[0] is output:
            self._quantized = None
        self._operations.append(structs.Operation(kind=kind, output=output, scale=scale, **fields))
        return output

    def record_quantizing(
        self, kind: Kind, output: Register, group: int, **fields: Any
    ) -> Register:
        """Record an operation that also writes its rows as int8, in groups of columns; 0: not."""
        self.record(kind, output, quantizes=group, **fields)
        if group:
            self._quantized = output, group
        return output

    def normed(
        self,
        inputs: Register,
        norm: structs.Norm | None,
        output: Register,
        reader: structs.Matrix,
        **fields: Any,
    ) -> Register:
        """Record a norm of what a matrix reads; return where its result is."""
        if norm is None:
            return inputs
        return self.record_quantizing(
            Kind.NORM,
            output,
            self.group_of(reader),
            input=inputs,
            norm=pointer(norm),
            width=reader.columns,
            **fields,
        )

    def normed_in_place(
        self, register: Register, norm: structs.Norm | None, width: int
    ) -> Register:
        if norm is None:
            return register
        return self.record(Kind.NORM, register, input=register, norm=pointer(norm), width=width)

    def add_up(self, register: Register, width: int) -> Register:
        """Record that the ranks' parts of a sum are added; alone, the register is the sum."""
        if not self.is_part:
            return register
        self._offer(register, width=width)
        return self.record(Kind.SUM_RANKS, register, width=width)

    def collect(self, rows: HeadRows) -> Register:
        """Record that rank 0 gets the ranks' logits of the wanted rows, side by side."""
        self._offer(Register.OWN_LOGITS, width=rows.count, row_set=RowSet.WANTED)
        if rows.first == 0:
            self.record(Kind.COLLECT, Register.LOGITS, width=rows.each, row_set=RowSet.WANTED)
        return Register.LOGITS

    def _offer(self, register: Register, **fields: Any) -> None:
        self.record(Kind.OFFER, register, input=register, **fields)
        self.record(Kind.MEET, register)

    def quantized(self, inputs: Register, matrix: structs.Matrix) -> int:
        """Have inputs quantized as a matrix reads them; return the columns of their groups."""
        group = self.group_of(matrix)
        if group and self._quantized != (inputs, group):
            columns = matrix.columns
            self.record(Kind.QUANTIZE, inputs, input=inputs, quantizes=group, width=columns)
            self._quantized = inputs, group
        return group

    def multiply(
        self,
        inputs: Register,
        matrix: structs.Matrix,
        output: Register,
        *,
        kind: Kind = Kind.MULTIPLY,
        **fields: Any,
    ) -> Register:
        """Record the product of a matrix, and before it what it lacks."""
        group = self.quantized(inputs, matrix)
        self.record(kind, output, input=inputs, matrix=pointer(matrix), quantizes=group, **fields)
        self.adapt(inputs, matrix, output, scale=fields.get("scale", 1.0))
        return output

    def adapt(
        self,
        inputs: Register,
        matrix: structs.Matrix,
        output: Register,
        *,
        scale: float = 1.0,
        **chosen: Any,
    ) -> None:
        """Record what the adapters of rows add to a product, if any add to its matrix.

        ``chosen`` says of a stack which of its matrices rows go through.
        """
        low_rank = self.low_rank
        if low_rank is None or (number := low_rank.numbers.get(id(matrix))) is None:
            return
        each: dict[str, Any] = {
            "matrix": pointer(matrix),
            "layer": number,
            "width": low_rank.columns,
            **chosen,
        }
        self.record(Kind.ADAPT_DOWN, Register.LOW_RANK, input=inputs, **each)
        self.record(Kind.ADAPT_UP, output, input=Register.LOW_RANK, scale=scale, **each)

    def activate(
        self,
        inputs: Register,
        output: Register,
        activation: dict[str, Any],
        *,
        width: int,
        reader: structs.Matrix,
    ) -> Register:
        """Record an activation of gate and up columns, ``width`` together."""
        group = self.group_of(reader)
        fields = {"input": inputs, "width": width, **activation}
        if fields.get("row_set") == RowSet.CHOSEN:  # which have quantized rows of their own
            return self.record(Kind.ACTIVATE, output, quantizes=group, **fields)
        return self.record_quantizing(Kind.ACTIVATE, output, group, **fields)

    def group_of(self, matrix: structs.Matrix) -> int:
        """Return the columns of a group of int8 activations; 0 where they stay float32."""
        if self._exact or matrix.scheme in _PLAIN:
            return 0
        return matrix.group or ACTIVATION_GROUP
