"""Which part of which weight lies where in a block of device memory.

A placement is arithmetic over a file's header; ``zse.stream.plan`` makes reads of it. The usual one
is the whole file, whose block mirrors the file's tensor region: a run of bytes a group, and nothing
is worked out for a tensor. ``zse.stream.shards`` has the share of one device among several,
``zse.stream.window`` what stays of a model that is larger than the memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from zse.format.spec import PAGE
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from zse.format.spec import Group, TensorEntry, ZSEHeader


@record
class Run:
    """Pieces of a file, evenly spaced, which lie one behind the other in the block."""

    offset_bytes: int
    """Of the first piece, in the file."""
    piece_bytes: int
    num_pieces: int = 1
    stride_bytes: int = 0
    """From the start of a piece to the start of the next, in the file."""
    destination_offset_bytes: int
    """Of the first piece, in the block."""


class Placement(Protocol):
    """Where the tensors of one file lie in a block."""

    @property
    def header(self) -> ZSEHeader: ...

    @property
    def length_bytes(self) -> int:
        """Of the block."""

    @property
    def origin_bytes(self) -> int:
        """Offset that the block begins at, as ``held`` counts: the region's own, or 0."""

    def held(self, entry: TensorEntry) -> TensorEntry:
        """Return a tensor of the file as it lies in the block: what of it, and where."""

    def runs(self, group: Group) -> tuple[Run, ...]:
        """Return what is read of a group, in file order of its parts."""


class WholeFile:
    """All of a file, as it lies there; a group is one run."""

    def __init__(self, header: ZSEHeader) -> None:
        groups = header.groups
        self.header = header
        self.origin_bytes = groups[0].offset_bytes if groups else 0
        self.length_bytes = groups[-1].end_bytes - self.origin_bytes if groups else 0

    def held(self, entry: TensorEntry) -> TensorEntry:
        return entry

    def runs(self, group: Group) -> tuple[Run, ...]:
        return (_whole(group, group.offset_bytes - self.origin_bytes),)


class SomeGroups:
    """Some groups of a file one behind the other, each as it lies there."""

    origin_bytes = 0

    def __init__(self, header: ZSEHeader, names: Collection[str]) -> None:
        groups = tuple(group for group in header.groups if group.name in names)
        self._moved: list[tuple[Group, int]] = []
        self.length_bytes = 0
        for group in groups:
            self._moved.append((group, self.length_bytes - group.offset_bytes))
            self.length_bytes += align_up(group.length_bytes, PAGE)
        tensors = tuple(one for one in header.tensors if self._shift_of(one) is not None)
        self.header = replace(header, groups=groups, tensors=tensors)

    def held(self, entry: TensorEntry) -> TensorEntry:
        by_bytes = self._shift_of(entry)
        assert by_bytes is not None
        parts = tuple(
            replace(part, offset_bytes=part.offset_bytes + by_bytes) for part in entry.parts
        )
        return replace(entry, parts=parts)

    def runs(self, group: Group) -> tuple[Run, ...]:
        by_bytes = next(by for one, by in self._moved if one.name == group.name)
        return (_whole(group, group.offset_bytes + by_bytes),)

    def _shift_of(self, entry: TensorEntry) -> int | None:
        """Return by how much a tensor's place differs from that in the file; None: it has none."""
        at = entry.parts[0].offset_bytes
        found = (by for one, by in self._moved if one.offset_bytes <= at < one.end_bytes)
        return next(found, None)


class ModelTable:
    """Several models in one block, one behind the other, by their names."""

    def __init__(self, placements: Mapping[str, Placement]) -> None:
        self._placed: dict[str, Placement] = {}
        self.length_bytes = 0
        for name, placement in placements.items():
            self._placed[name] = _Moved(placement, self.length_bytes)
            self.length_bytes += align_up(placement.length_bytes, PAGE)

    def of(self, name: str) -> Placement:
        """Return one model's place in the block.

        Raises:
            KeyError: The table has no such model.
        """
        return self._placed[name]


class _Moved:
    """A placement that begins further on in a larger block."""

    def __init__(self, placement: Placement, by_bytes: int) -> None:
        self._placement = placement
        self._by_bytes = by_bytes
        self.header = placement.header
        self.length_bytes = placement.length_bytes
        self.origin_bytes = placement.origin_bytes - by_bytes

    def held(self, entry: TensorEntry) -> TensorEntry:
        return self._placement.held(entry)

    def runs(self, group: Group) -> tuple[Run, ...]:
        return tuple(
            replace(run, destination_offset_bytes=run.destination_offset_bytes + self._by_bytes)
            for run in self._placement.runs(group)
        )


def one_piece(offset_bytes: int, length_bytes: int, destination_offset_bytes: int) -> Run:
    return Run(
        offset_bytes=offset_bytes,
        piece_bytes=length_bytes,
        destination_offset_bytes=destination_offset_bytes,
    )


def _whole(group: Group, destination_offset_bytes: int) -> Run:
    return one_piece(group.offset_bytes, group.length_bytes, destination_offset_bytes)


def members(header: ZSEHeader) -> Iterator[tuple[Group, list[TensorEntry]]]:
    """Return each group with its tensors, both in file order."""
    waiting = list(reversed(header.tensors))
    for group in header.groups:
        entries = []
        while waiting and waiting[-1].parts[0].offset_bytes < group.end_bytes:
            entries.append(waiting.pop())
        yield group, entries
