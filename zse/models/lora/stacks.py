"""Stacks of experts as PEFT adapts them: parameters of one module, all experts in one pair.

Such a pair has no name of its parameter (``target_parameters``): the second parameter of a module
is ``base_layer`` of the first. Which it is follows from the shapes, which are never alike. What
modules are called differs between checkpoints and transformers, so a layer's number tells them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from zse.backends.adapters import LowRank, PlainMatrix
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec

_MODULE = re.compile(
    r"(?:.*\.)?layers\.(\d{1,6})\.(?:[a-z_]+\.)*experts(?:\.base_layer)*", re.ASCII
)
_WORD: dict[int, Literal["H", "I"]] = {2: "H", 4: "I"}
"""By the bytes of a number, which is moved as it is."""
_MOST_CHARACTERS = 256
"""Of a module's name: longer ones are nobody's, and take long to look at."""


@record
class StackPlace:
    """A stack of matrices of as many rows each."""

    weight: WeightSpec

    @property
    def members(self) -> int:
        return self.weight.members

    @property
    def rows(self) -> int:
        """Of each matrix."""
        return self.weight.shape[0] // self.members

    @property
    def columns(self) -> int:
        return self.weight.shape[1]


def stacks_of(spec: ModelSpec) -> dict[int, tuple[StackPlace, ...]]:
    """Return the stacks that adapters can be for, by the number of their layer."""
    found = {}
    for layer in spec.layers:
        if layer.experts is None:
            continue
        expert = layer.experts.expert
        weights = (expert.up.weight, expert.down.weight)
        found[layer.index] = tuple(StackPlace(weight=one) for one in weights if _is_plain(one))
    return found


def stack_of(
    module: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    rank: int,
    stacks: Mapping[int, Sequence[StackPlace]],
) -> StackPlace | None:
    """Return the stack that a pair of matrices is for.

    Args:
        module: As the adapter names it.
        shapes: Of A and of B.
        rank: Of each expert's pair.
        stacks: Of the model.
    """
    return next(
        (
            one
            for one in stacks.get(layer_of(module), ())
            if shapes == ((rank * one.members, one.columns), (one.rows, rank * one.members))
        ),
        None,
    )


def members_of(part: LowRank, members: int) -> Iterator[LowRank]:
    """Return the pair of each matrix of a stack, of the pair that a file has for all of them.

    ``down`` has the rows of one matrix behind those of another; in the columns of ``up`` they take
    turns.
    """
    down, up, rank = part.down, part.up, part.rank // members
    down_bytes = len(down.data) // members
    numbers = memoryview(up.data).cast(_WORD[len(up.data) // (up.rows * up.columns)])
    for member in range(members):
        yield LowRank(
            first_row=part.first_row + member * up.rows,
            scale=part.scale,
            down=PlainMatrix(
                data=down.data[member * down_bytes : (member + 1) * down_bytes],
                scheme=down.scheme,
                rows=rank,
                columns=down.columns,
            ),
            up=PlainMatrix(
                data=numbers[member::members].tobytes(),
                scheme=up.scheme,
                rows=up.rows,
                columns=rank,
            ),
        )


def layer_of(module: str) -> int:
    """Return the layer whose experts a module is; -1 where it is none."""
    match = _MODULE.fullmatch(module) if len(module) <= _MOST_CHARACTERS else None
    return int(match[1]) if match else -1


def _is_plain(weight: WeightSpec) -> bool:
    return not any(one.order or one.is_transposed or one.packing for one in weight.sources)
