"""Low-rank adapters as backends take them: what is added to which rows of which matrix.

``y += scale * up @ (down @ x)`` for the rows of sequences that use the adapter. Nothing here knows
a file; numbers are bytes, and each backend makes of them what its kernels read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.format.schemes import Scheme
    from zse.models.layer_spec import LinearSpec
    from zse.models.spec import ModelSpec


@record
class PlainMatrix:
    """Numbers [rows, columns], row by row."""

    data: bytes
    scheme: Scheme
    """A plain one."""
    rows: int
    columns: int


@record
class LowRank:
    """What is added to some rows of a matrix: ``scale * up @ down``."""

    first_row: int
    """Of the matrix as the model has it; ``up.rows`` rows follow."""
    scale: float
    down: PlainMatrix
    """[rank, columns of the matrix]."""
    up: PlainMatrix
    """[rows, rank]."""
    members: int = 1
    """Matrices of a stack, each with a pair of its own, where an adapter is merged: ``down`` has
    the rows of one behind those of another, and they take turns in the columns of ``up``."""

    @property
    def rank(self) -> int:
        return self.down.rows


@record
class AdapterWeights:
    """All that an adapter adds: for each matrix, by its name in the model."""

    name: str
    """What errors call it."""
    parts: Mapping[str, tuple[LowRank, ...]]
    """Of rows that do not overlap."""

    @property
    def size_bytes(self) -> int:
        matrices = (m for parts in self.parts.values() for one in parts for m in (one.down, one.up))
        return sum(len(matrix.data) for matrix in matrices)


def adapted_linears(spec: ModelSpec) -> Iterator[LinearSpec]:
    """Return the matrices that steps add adapters to, always in one order."""
    for layer in spec.layers:
        mixer, mlp = layer.mixer, layer.mlp
        yield mixer.qkv if is_attention(mixer) else mixer.inputs
        yield mixer.output
        if mlp is not None:
            yield mlp.up
            yield mlp.down


def most_parts(spec: ModelSpec) -> int:
    """Return how many adapters of rows one matrix can have at most: one for each source."""
    return max(len(linear.weight.sources) for linear in adapted_linears(spec))
