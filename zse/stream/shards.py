"""The share of one device among several that compute one model together.

A matrix is divided by its rows or by its columns, or every device has all of it; the model's spec
says which (``zse.models.weights.WeightSpec.shard``). Joined matrices are divided piece by piece, so
that q, k and v stay together: a share of q|k|v is three runs of the file, one of gate|up two.
Columns are divided between packed groups, and a share of them is as many pieces as there are rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zse.errors import UsageError
from zse.format.errors import Misuse
from zse.format.schemes import bytes_of_shape, parts_for
from zse.format.spec import PAGE, TENSOR_ALIGN, TensorEntry, TensorPart
from zse.stream.placement import Run, members, one_piece
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zse.format.spec import Group, ZSEHeader


class Weight(Protocol):
    """How a tensor is divided: ``zse.models.weights.WeightSpec``."""

    @property
    def name(self) -> str: ...

    @property
    def shard(self) -> str:
        """``rows``, ``columns`` or ``none``."""

    @property
    def piece_rows(self) -> tuple[int, ...]:
        """Rows of each of the matrices that are joined in it."""


class Sharded:
    """What one of several devices holds; see ``zse.stream.placement.Placement``.

    Parts lie in file order, aligned as in the file. What cannot be divided with its tensor, such as
    the scales of INT8 rows whose columns are shared out, every device has.

    Args:
        header: The file's.
        weights: How each of its tensors is divided.
        rank: Which device, from 0.
        ranks: How many there are.

    Raises:
        UsageError: A tensor cannot be shared evenly, nothing says how it is divided, or there is
            no such device.
    """

    origin_bytes = 0

    def __init__(
        self, header: ZSEHeader, weights: Iterable[Weight], *, rank: int, ranks: int
    ) -> None:
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks} was asked for; ranks count from 0")
        self.header = header
        self._rank, self._ranks = rank, ranks
        self._held: dict[str, TensorEntry] = {}
        self._runs: dict[str, tuple[Run, ...]] = {}
        known = {weight.name: weight for weight in weights}
        offset = 0
        for group, entries in members(header):
            runs: list[Run] = []
            for entry in entries:
                if entry.name not in known:
                    raise Misuse.UNKNOWN_NAME(f"the model's spec has no tensor {entry.name}")
                held = self._place(entry, known[entry.name], offset)
                for part, share in zip(entry.parts, held.parts, strict=True):
                    runs.extend(self._runs_of(part, share, known[entry.name]))
                self._held[entry.name] = held
                offset = held.parts[-1].end_bytes
            self._runs[group.name] = tuple(runs)
            offset = align_up(offset, PAGE)
        self.length_bytes = offset

    def held(self, entry: TensorEntry) -> TensorEntry:
        return self._held[entry.name]

    def runs(self, group: Group) -> tuple[Run, ...]:
        return self._runs[group.name]

    def _place(self, entry: TensorEntry, weight: Weight, offset_bytes: int) -> TensorEntry:
        shape = _share_of(entry, weight, self._ranks)
        parts = []
        for role, dtype, part_shape in parts_for(entry.scheme, shape, entry.group_size):
            part = TensorPart(
                role=role,
                dtype=dtype,
                shape=part_shape,
                offset_bytes=align_up(offset_bytes, TENSOR_ALIGN),
                length_bytes=bytes_of_shape(dtype, part_shape),
            )
            parts.append(part)
            offset_bytes = part.end_bytes
        return TensorEntry(
            name=entry.name,
            scheme=entry.scheme,
            shape=shape,
            group_size=entry.group_size,
            parts=tuple(parts),
        )

    def _runs_of(self, part: TensorPart, share: TensorPart, weight: Weight) -> Iterator[Run]:
        row_bytes = part.length_bytes // part.shape[0]
        if share.shape == part.shape:
            yield one_piece(part.offset_bytes, part.length_bytes, share.offset_bytes)
        elif weight.shard == "columns":
            piece_bytes = row_bytes // self._ranks
            yield Run(
                offset_bytes=part.offset_bytes + self._rank * piece_bytes,
                piece_bytes=piece_bytes,
                num_pieces=part.shape[0],
                stride_bytes=row_bytes,
                destination_offset_bytes=share.offset_bytes,
            )
        else:
            source, target = part.offset_bytes, share.offset_bytes
            for rows in weight.piece_rows:
                length = rows // self._ranks * row_bytes
                yield one_piece(source + self._rank * length, length, target)
                source += rows * row_bytes
                target += length


def _share_of(entry: TensorEntry, weight: Weight, ranks: int) -> tuple[int, ...]:
    if weight.shard == "none":
        return entry.shape
    pieces: tuple[int, ...]
    if weight.shard == "rows":
        axis, unit, pieces = 0, 1, weight.piece_rows
    else:
        axis, unit, pieces = len(entry.shape) - 1, entry.group_size or 1, entry.shape[-1:]
    if sum(pieces) != entry.shape[axis] or any(count % (ranks * unit) for count in pieces):
        raise UsageError(
            f"{weight.shard} {' + '.join(map(str, pieces))} of tensor {entry.name} "
            f"{list(entry.shape)} cannot be shared evenly among {ranks} devices in units of {unit}",
            hint="Use fewer devices, or convert the model with a smaller group size.",
        )
    return (*entry.shape[:axis], entry.shape[axis] // ranks, *entry.shape[axis + 1 :])
