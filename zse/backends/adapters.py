"""Low-rank adapters as backends take them: what is added to which rows of which matrix.

``y += scale * up @ (down @ x)`` for the rows of sequences that use the adapter. Nothing here knows
a file; numbers are bytes, and each backend makes of them what its kernels read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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


@record
class AdaptedMatrix:
    """A matrix that steps add adapters to, or a stack of them, one for each expert."""

    linear: LinearSpec
    members: int = 1

    @property
    def name(self) -> str:
        return self.linear.weight.name

    @property
    def rows(self) -> int:
        """Of each matrix."""
        return self.linear.weight.shape[0] // self.members

    @property
    def part_rows(self) -> tuple[int, ...]:
        """Rows of each matrix that are adapted one by one: those of each source."""
        weight = self.linear.weight
        together = self.members // weight.stack
        return tuple(source.rows // together for source in weight.sources)

    def by_member(self, parts: Iterable[LowRank]) -> list[tuple[LowRank, ...]]:
        """Return what each matrix is added, its rows counted from its own first one."""
        found: list[tuple[LowRank, ...]] = [()] * self.members
        for part in parts:
            member, first_row = divmod(part.first_row, self.rows)
            found[member] += (replace(part, first_row=first_row),)
        return found


def adapted_linears(spec: ModelSpec) -> Iterator[LinearSpec]:
    """Return the matrices outside of experts that steps add adapters to, always in one order."""
    for layer in spec.layers:
        mixer, mlp = layer.mixer, layer.mlp
        yield mixer.qkv if is_attention(mixer) else mixer.inputs
        yield mixer.output
        if mlp is not None:
            yield mlp.up
            yield mlp.down


def adapted_experts(spec: ModelSpec) -> Iterator[AdaptedMatrix]:
    """Return those of experts: of the chosen ones, and of the one of every token."""
    for layer in spec.layers:
        if (experts := layer.experts) is None:
            continue
        for linear in (experts.expert.up, experts.expert.down):
            yield AdaptedMatrix(linear=linear, members=experts.num_experts)
        if experts.shared is not None:
            yield AdaptedMatrix(linear=experts.shared.up)
            yield AdaptedMatrix(linear=experts.shared.down)


def adapted_matrices(spec: ModelSpec) -> list[AdaptedMatrix]:
    """Return all that steps add adapters to, always in one order."""
    plain = [AdaptedMatrix(linear=linear) for linear in adapted_linears(spec)]
    return [*plain, *adapted_experts(spec)]
