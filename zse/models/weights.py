"""A stored weight, as data: its shape, what it is for, and what of a checkpoint it is made of."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.format.mxfp4 import MXFP4_GROUP
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

WeightKind: TypeAlias = Literal[
    "linear",
    "attention",
    "experts",
    "gate",
    "latent",
    "embed",
    "position",
    "head",
    "norm",
    "bias",
    "state",
]
"""What a weight is for; it decides how it is stored (``zse.models.storage``).

``attention`` makes queries, keys and values; ``head`` is also an embedding that the head reads too;
``gate`` is a small matrix whose outputs steer others, or score a text: routers, steps, decays,
classifiers; ``latent`` is multiplied by a row for each head, which is another one for each;
``position`` has a row for each position of a sequence; ``state`` is what a linear attention keeps
its state by: convolutions, decays, steps.
"""
Shard: TypeAlias = Literal["rows", "columns", "none"]
"""How a weight is divided among devices: each piece of its rows, its columns (partial sums are
added up afterwards), or not at all: every device has all of it."""


@record
class Packing:
    """A scheme that a checkpoint's numbers have already. They are kept as they are."""

    scheme: Literal["mxfp4", "int4", "nf4", "int8"]
    group_size: int
    is_matrix: bool = True
    """Whether a format of quantized checkpoints shows it as a matrix (``zse.quantize.formats``);
    else the family itself names its tensors: those of blocks and of scales."""


MXFP4 = Packing(scheme="mxfp4", group_size=MXFP4_GROUP, is_matrix=False)


@record
class RowOrder:
    """Another order of a tensor's rows: seen as ``view``, their axes are put into this order."""

    view: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def num_fixed(self) -> int:
        """Axes at the beginning that stay where they are."""
        moved = (axis for axis, old in enumerate(self.axes) if axis != old)
        return next(moved, len(self.axes))

    @property
    def period(self) -> int:
        """Rows that are reordered among themselves."""
        return prod(self.view[self.num_fixed :])


@record
class RowGroups:
    """Another order of a tensor's rows, which lie in groups of several kinds of rows.

    Each group has ``sizes`` rows of its kinds; all groups' rows of the first kind come first, then
    those of the second, and so on.
    """

    num_groups: int
    sizes: tuple[int, ...]

    @property
    def period(self) -> int:
        """Rows that are reordered among themselves: all."""
        return self.num_groups * sum(self.sizes)


@record
class RowHalves:
    """Another order of the last rows of each head: those at even places, then those at odd ones."""

    head_rows: int
    turning: int
    """How many of them are reordered."""

    @property
    def period(self) -> int:
        """Rows that are reordered among themselves, and those that stay before them."""
        return self.head_rows


Order: TypeAlias = "RowOrder | RowGroups | RowHalves"


@record
class Source:
    """A tensor of a checkpoint. Its rows are everything but the last axis."""

    name: str
    """``{index}`` in it is the number within the stack."""
    shape: tuple[int, ...]
    """As the checkpoint has it."""
    is_transposed: bool = False
    """Whether its last two axes change places first: inputs come before outputs in it."""
    order: Order | None = None
    """None: its rows stay as they are."""
    is_flat: bool = False
    """Whether it is read as one vector, each number of it a row: biases of all experts."""
    packing: Packing | None = None
    """Then there are several tensors for it in the checkpoint, codes and scales among them."""

    @property
    def rows(self) -> int:
        shape = self.shape
        if self.is_vector:
            return prod(shape)
        return prod(shape[:-2]) * shape[-1 if self.is_transposed else -2]

    @property
    def is_vector(self) -> bool:
        return self.is_flat or len(self.shape) < 2

    @property
    def columns(self) -> int:
        return 1 if self.is_vector else self.shape[-2 if self.is_transposed else -1]


@record
class WeightSpec:
    """One stored tensor, and the checkpoint's tensors that are stacked, by rows, to make it."""

    name: str
    """Name in the ``.zse`` file."""
    shape: tuple[int, ...]
    kind: WeightKind
    sources: tuple[Source, ...]
    """In row order. Pieces that are used together are joined: q, k and v; gate and up."""
    stack: int = 1
    """How often the sources repeat: once for each expert."""
    shard: Shard = "none"
    factor: float = 1.0
    """Multiplies the checkpoint's values."""
    offset: float = 0.0
    """Is added to them: norms that checkpoints keep as their distance from one."""

    @property
    def piece_rows(self) -> tuple[int, ...]:
        """Rows of each joined piece. A shard by rows takes its part of every one of them."""
        return tuple(source.rows for source in self.sources) * self.stack

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix of layers that ``--quant`` is for."""
        return self.kind in ("linear", "attention", "experts")

    @property
    def members(self) -> int:
        """Matrices of which it is made, each of as many rows: one for each expert."""
        return self.stack * prod(self.sources[0].shape[:-2])

    @property
    def packing(self) -> Packing | None:
        """Scheme that the checkpoint's numbers have already."""
        return self.sources[0].packing

    def pieces(self) -> Iterator[Source]:
        """Return every tensor of the checkpoint that it is made of, in row order."""
        for index in range(self.stack):
            for source in self.sources:
                named = source.name.replace("{index}", str(index))
                yield source if named == source.name else replace(source, name=named)
