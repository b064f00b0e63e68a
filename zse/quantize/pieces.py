"""The tensors of a checkpoint, made of the rows of a file's weights: in 16 bits, as they were."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import lcm, prod
from typing import TYPE_CHECKING, Protocol

import torch

from zse.errors import ConversionError
from zse.format.as_torch import bytes_from
from zse.format.schemes import Scheme
from zse.quantize.scheme import quantize_rows
from zse.quantize.source_rows import restored, rows_together
from zse.quantize.stored import stored_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.format.reader import ZSEReader
    from zse.models.weights import Source, WeightSpec
    from zse.quantize.stored import StoredMatrix

CHUNK_ELEMENTS = 4 * 1024 * 1024
NAMES = {Scheme.FP32: "F32", Scheme.FP16: "F16", Scheme.BF16: "BF16"}
"""As safetensors spells them."""
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8}


class OutTensor(Protocol):
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """As safetensors spells it."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """Return its bytes, in order."""
        ...


def length_bytes(tensor: OutTensor) -> int:
    """Return how many bytes a tensor takes."""
    return prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]


class PlainPiece:
    """A tensor of the checkpoint with dequantized numbers.

    Args:
        stored: The weight that it is a piece of, as the file has it.
        weight: What that weight is.
        source: The piece, under the name that the checkpoint has for it.
        first_row: Of the piece within the weight.
        dtype: FP16 or BF16; what a file keeps in float32 stays so where 16 bits would not hold it.
    """

    def __init__(
        self,
        stored: StoredMatrix,
        weight: WeightSpec,
        source: Source,
        first_row: int,
        dtype: Scheme,
    ) -> None:
        self._stored, self._weight, self._first_row = stored, weight, first_row
        # What came packed has outputs before inputs; unpacked it has inputs first.
        self._is_turned = source.packing is not None and not source.packing.is_matrix
        self._source, self._wanted = source, dtype
        self.name = source.name
        self.shape = source.shape
        if self._is_turned:
            self.shape = (*source.shape[:-2], source.shape[-1], source.shape[-2])

    @property
    def dtype(self) -> str:
        """As safetensors spells it."""
        return NAMES[self._scheme]

    def values(self) -> torch.Tensor:
        """Return all of its numbers, float32."""
        return self._values(0, self._source.rows).reshape(self.shape)

    def chunks(self) -> Iterator[memoryview]:
        """Return its bytes, some rows at a time.

        Raises:
            ConversionError: A number is none that 16 bits hold.
        """
        source = self._source
        together = rows_together(source)
        if self._is_turned:
            together = lcm(together, source.shape[-2])
        count = max(1, CHUNK_ELEMENTS // (source.columns * together)) * together
        if source.is_flat:
            count = source.rows
        for start in range(0, source.rows, count):
            stop = min(start + count, source.rows)
            values = self._values(start, stop)
            try:
                data = quantize_rows(self._scheme, values)["data"]
            except ConversionError as error:
                raise ConversionError(f"tensor {self.name}: {error.message}") from error
            yield bytes_from(data)

    def _values(self, start: int, stop: int) -> torch.Tensor:
        """Return some rows of the file as the numbers that the checkpoint has for them."""
        first, source = self._first_row, self._source
        rows = self._stored.rows(first + start, first + stop).values()
        shape: tuple[int, ...] = source.shape
        if source.is_transposed or self._is_turned:
            members = (stop - start) // source.shape[-1 if source.is_transposed else -2]
            shape = (members, *source.shape[-2:])
        elif not source.is_flat:
            shape = tuple(rows.shape)
        values = restored(rows, self._weight, replace(source, shape=shape))
        return values.transpose(-1, -2) if self._is_turned else values

    @cached_property
    def _scheme(self) -> Scheme:
        """16 bits, unless the file has 32 and they would lose something: of vectors and states."""
        dtype = self._wanted
        if self._stored.entry.scheme is not Scheme.FP32:
            return dtype
        values = self._values(0, self._source.rows)
        narrow = values.half() if dtype is Scheme.FP16 else values.bfloat16()
        return dtype if torch.equal(narrow.float(), values) else Scheme.FP32


def plain_pieces(
    reader: ZSEReader, weight: WeightSpec, dtype: Scheme = Scheme.BF16
) -> Iterator[PlainPiece]:
    """Return the tensors that a weight was made of."""
    stored, first_row = stored_matrix(reader, weight.name), 0
    for source in weight.pieces():
        yield PlainPiece(stored, weight, source, first_row, dtype)
        first_row += source.rows
