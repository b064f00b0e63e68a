"""The share of one device among several that compute one model together.

A matrix is divided by its rows or by its columns, or every device has all of it: a ``Cut`` says
which of them one device has (``zse.models.share`` makes cuts of a model's spec). Joined matrices
are cut piece by piece, so that q, k and v stay together: a share of q|k|v is three runs of the
file, one of gate|up two. Columns are cut between packed groups, and a share of them is as many
pieces as there are rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from zse.errors import UsageError
from zse.format.errors import Misuse
from zse.format.schemes import PACKED_COLUMNS, bytes_of_shape, parts_for
from zse.format.spec import PAGE, TENSOR_ALIGN, TensorEntry, TensorPart
from zse.records import record
from zse.stream.placement import Run, members, one_piece
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.format.spec import Group, ZSEHeader


@record
class Cut:
    """Which part of a tensor a device has."""

    axis: Literal["rows", "columns"]
    pieces: tuple[tuple[int, int], ...]
    """First row and number of rows of each piece, ascending; of columns there is one piece. A
    device without any has nothing of the tensor."""

    @property
    def length(self) -> int:
        """Rows, or columns, of the share."""
        return sum(count for _, count in self.pieces)

    @property
    def end(self) -> int:
        """The first row, or column, of the tensor behind all of them."""
        return max((first + count for first, count in self.pieces), default=0)


class Sharded:
    """What one of several devices holds; see ``zse.stream.placement.Placement``.

    Parts lie in file order, aligned as in the file. What cannot be divided with its tensor, such as
    the scales of INT8 rows whose columns are shared out, every device has.

    Args:
        header: The file's.
        cuts: What the device has of tensors, by their names; it has all of any other.

    Raises:
        UsageError: A cut goes through a group of packed numbers, or beyond its tensor.
        UnknownNameError: The file has no tensor of that name.
    """

    origin_bytes = 0

    def __init__(self, header: ZSEHeader, cuts: Mapping[str, Cut]) -> None:
        absent = {name for name, cut in cuts.items() if not cut.pieces}
        self.header = _without(header, absent)
        """The file's, without tensors of which the device has nothing."""
        self._held: dict[str, TensorEntry] = {}
        self._runs: dict[str, tuple[Run, ...]] = {}
        self._names: dict[str, list[str]] = {}
        offset = 0
        for group, entries in members(header):
            present = [entry for entry in entries if entry.name not in absent]
            for entry in present:
                cut = cuts.get(entry.name)
                held = _placed(entry, cut, offset)
                self._held[entry.name] = held
                self._runs[entry.name] = tuple(_runs_of(entry, held, cut))
                offset = held.parts[-1].end_bytes
            self._names[group.name] = [entry.name for entry in present]
            offset = align_up(offset, PAGE)
        self.length_bytes = offset
        if unknown := cuts.keys() - {entry.name for entry in header.tensors}:
            raise Misuse.UNKNOWN_NAME(f"the file has no tensor {', '.join(sorted(unknown))}")

    def held(self, entry: TensorEntry) -> TensorEntry:
        return self._held[entry.name]

    def runs(self, group: Group) -> tuple[Run, ...]:
        return tuple(run for name in self._names[group.name] for run in self._runs[name])

    def runs_of(self, name: str) -> tuple[Run, ...]:
        """Return what is read of one tensor."""
        return self._runs[name]


def _without(header: ZSEHeader, absent: set[str]) -> ZSEHeader:
    if not absent:
        return header
    return replace(header, tensors=tuple(one for one in header.tensors if one.name not in absent))


def _placed(entry: TensorEntry, cut: Cut | None, offset_bytes: int) -> TensorEntry:
    """Return a tensor's share as it lies in the block, from an offset on."""
    shape = _share_of(entry, cut)
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


def _share_of(entry: TensorEntry, cut: Cut | None) -> tuple[int, ...]:
    if cut is None:
        return entry.shape
    axis = 0 if cut.axis == "rows" else len(entry.shape) - 1
    unit = 1 if cut.axis == "rows" else unit_of(entry)
    numbers = (number for piece in cut.pieces for number in piece)
    if cut.end > entry.shape[axis] or any(number % unit for number in numbers):
        raise UsageError(
            f"{cut.axis} {' + '.join(f'{first}..{first + count}' for first, count in cut.pieces)} "
            f"of tensor {entry.name} {list(entry.shape)} are no share of it in units of {unit}",
            hint="Use fewer devices, or convert the model with a smaller group size.",
        )
    return (*entry.shape[:axis], cut.length, *entry.shape[axis + 1 :])


class Packed(Protocol):
    """A tensor as a file has it, or will have it."""

    @property
    def name(self) -> str: ...

    @property
    def group_size(self) -> int: ...


def unit_of(entry: Packed) -> int:
    """Return how many columns of a tensor stay together."""
    return max(entry.group_size, PACKED_COLUMNS) if entry.group_size else 1


def _runs_of(entry: TensorEntry, held: TensorEntry, cut: Cut | None) -> Iterator[Run]:
    for part, share in zip(entry.parts, held.parts, strict=True):
        row_bytes = part.length_bytes // part.shape[0]
        if cut is None or share.shape == part.shape:
            yield one_piece(part.offset_bytes, part.length_bytes, share.offset_bytes)
        elif cut.axis == "columns":
            first, count = cut.pieces[0]
            yield Run(
                offset_bytes=part.offset_bytes + row_bytes * first // entry.shape[-1],
                piece_bytes=row_bytes * count // entry.shape[-1],
                num_pieces=part.shape[0],
                stride_bytes=row_bytes,
                destination_offset_bytes=share.offset_bytes,
            )
        else:
            yield from _row_runs(part, share, cut)


def _row_runs(part: TensorPart, share: TensorPart, cut: Cut) -> Iterator[Run]:
    """Return the runs of rows: pieces that are evenly spaced are one, as those of experts are."""
    row_bytes, target = part.length_bytes // part.shape[0], share.offset_bytes
    pieces, at = cut.pieces, 0
    while at < len(pieces):
        first, count = pieces[at]
        stride = pieces[at + 1][0] - first if at + 1 < len(pieces) else 0
        end = at + 1
        while end < len(pieces) and pieces[end] == (first + (end - at) * stride, count):
            end += 1
        if end - at < 3:
            end, stride = at + 1, 0
        yield Run(
            offset_bytes=part.offset_bytes + first * row_bytes,
            piece_bytes=count * row_bytes,
            num_pieces=end - at,
            stride_bytes=stride * row_bytes,
            destination_offset_bytes=target,
        )
        target += (end - at) * count * row_bytes
        at = end
