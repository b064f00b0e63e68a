"""Records what is done before the first layer: rows of tokens, of positions, of types."""

from __future__ import annotations

from ctypes import pointer
from typing import TYPE_CHECKING

from zse.backends.cpu.join import Join
from zse.kernels.native import codes, structs
from zse.kernels.native.codes import Kind, Register

if TYPE_CHECKING:
    from zse.backends.cpu.recording import Recording
    from zse.backends.cpu.weights import Weights
    from zse.models.spec import EmbeddingSpec

_PLAIN_BYTES = {codes.Scheme.FP32: 4, codes.Scheme.FP16: 2, codes.Scheme.BF16: 2}


class Embedding:
    """The tables of a model's embedding."""

    def __init__(self, spec: EmbeddingSpec, weights: Weights) -> None:
        self.tokens = weights.matrix(spec.weight)
        self._positions = None
        if spec.positions is not None:
            self._positions = _without(weights.matrix(spec.positions), spec.first_position)
        self._types = None if spec.token_types is None else weights.matrix(spec.token_types)
        self._norm = None if spec.norm is None else weights.norm(spec.norm)
        self._join = None if spec.join is None else Join(spec.join, weights)

    def record(self, recording: Recording, scale: float, *, width: int) -> Register:
        """Record the residual stream's first rows; return where they are."""
        stream = recording.record(
            Kind.EMBED, Register.RESIDUAL, matrix=pointer(self.tokens), scale=scale
        )
        if self._positions is not None:
            recording.record(Kind.PLACE, stream, matrix=pointer(self._positions))
        if self._types is not None:
            recording.record(Kind.TYPE, stream, matrix=pointer(self._types))
        normed = recording.normed_in_place(stream, self._norm, width)
        return normed if self._join is None else self._join.record(recording, normed)


def _without(table: structs.Matrix, rows: int) -> structs.Matrix:
    """Return a plain table from one of its rows on, where it lies."""
    if not rows:
        return table
    skipped_bytes = rows * table.columns * _PLAIN_BYTES[codes.Scheme(table.scheme)]
    found = structs.Matrix.from_buffer_copy(table)
    found.data, found.rows = table.data + skipped_bytes, table.rows - rows
    return found
