"""Records how embeddings of tokens are joined with states that come with them.

A product with two vectors side by side is the sum of two products, each with its half of the
matrix's columns. So nothing is copied together in a step; the halves are cut once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.errors import UnsupportedModelError
from zse.kernels.native import structs
from zse.kernels.native.codes import Kind, Register

if TYPE_CHECKING:
    from zse.backends.cpu.recording import Recording
    from zse.backends.cpu.weights import Weights
    from zse.models.spec import JoinSpec

GIVEN = Register.ADDED
"""Where the states are when a step begins."""


class Join:
    """The two halves of a matrix, and the norms of what they read.

    Raises:
        UnsupportedModelError: The matrix cannot be cut between groups of its columns.
    """

    def __init__(self, spec: JoinSpec, weights: Weights) -> None:
        self._embedding_norm = weights.norm(spec.embedding_norm)
        self._state_norm = weights.norm(spec.state_norm)
        whole = weights.matrix(spec.linear.weight)
        if whole.group and (whole.columns // 2) % whole.group:
            raise UnsupportedModelError(
                f"{spec.linear.weight.name} joins two times {whole.columns // 2} columns, which "
                f"groups of {whole.group} do not divide"
            )
        parts = weights.parts_of(spec.linear.weight)
        self._pages: list[Pages] = []
        self._of_embedding = self._half(whole, parts, 0)
        self._of_state = self._half(whole, parts, 1)

    def record(self, recording: Recording, stream: Register) -> Register:
        """Record that the stream is joined with the states that are given."""
        states = recording.normed(GIVEN, self._state_norm, Register.NORMED, self._of_state)
        added = recording.multiply(states, self._of_state, Register.ADDED)
        normed = recording.normed(stream, self._embedding_norm, Register.NORMED, self._of_embedding)
        recording.multiply(normed, self._of_embedding, stream)
        return recording.record(Kind.ADD, stream, input=added, scale=1.0, width=self._of_state.rows)

    def _half(
        self, whole: structs.Matrix, parts: tuple[memoryview, ...], number: int
    ) -> structs.Matrix:
        """Return the first or the second half of a matrix's columns, copied row by row."""
        half = structs.Matrix.from_buffer_copy(whole)
        half.columns = whole.columns // 2
        data, *scales = parts
        half.data = self._cut(data, whole.rows, number)
        if scales and whole.group:
            half.scales = self._cut(scales[0], whole.rows, number)
        return half

    def _cut(self, part: memoryview, rows: int, number: int) -> int:
        row_bytes = len(part) // rows
        size = row_bytes // 2
        pages = Pages(rows * size)
        for row in range(rows):
            start = row * row_bytes + number * size
            pages.view[row * size : (row + 1) * size] = part[start : start + size]
        self._pages.append(pages)
        return pages.address
