"""One rank's side of a model that several processes compute on CPUs: its tensors, its meetings."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages, address_of
from zse.kernels.native import structs
from zse.kernels.native.codes import BELL_BYTES
from zse.stream.shards import Sharded
from zse.units import MIB, align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.backends.ranks import RankLink
    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry
    from zse.kernels.native.library import Library
    from zse.models.spec import ModelSpec
    from zse.stream.placement import Run
    from zse.stream.shards import Cut

_COPIERS = 4
_COPY_BYTES = 16 * MIB
_PAGE = 4096
_PARITIES = 2
_LONGEST_NANOSECONDS = 3600 * 10**9
"""Whether another rank hangs is for rank 0 to find out; who waits is told by a word."""


class ShareOfFile:
    """A rank's part of a file in memory: copies of what is cut, and the mapping for the rest.

    Pages that nobody copies to are never there, so it takes the memory of the copies alone. The
    ranks of a machine read one page cache, each the runs of its share.
    """

    def __init__(self, reader: ZSEReader, cuts: Mapping[str, Cut], library: Library) -> None:
        self._reader = reader
        self._cuts = cuts
        header = reader.header.loaded()
        self._placement = Sharded(header, cuts)
        present = self._placement.header.tensors
        self._entries = {entry.name: self._placement.held(entry) for entry in present}
        self._pages = Pages(self._placement.length_bytes)
        start = address_of(reader.weights())
        first = header.groups[0].offset_bytes
        held = [name for name in cuts if name in self._entries]
        runs = [run for name in held for run in self._placement.runs_of(name)]
        with ThreadPoolExecutor(_COPIERS, "zse-share") as pool:
            for run in runs:
                for piece in _in_pieces(run):
                    pool.submit(
                        library.copy_pieces,
                        start + piece.offset_bytes - first,
                        piece.stride_bytes,
                        piece.piece_bytes,
                        piece.num_pieces,
                        self._pages.address + piece.destination_offset_bytes,
                    )

    def entry(self, name: str) -> TensorEntry:
        return self._entries[name]

    def part(self, name: str, role: str) -> memoryview:
        if name not in self._cuts:
            return self._reader.part(name, role)
        part = self._entries[name].part(role)
        return self._pages.view[part.offset_bytes : part.end_bytes]


def _in_pieces(run: Run) -> list[Run]:
    """Cut a run into copies that threads share."""
    most = max(1, _COPY_BYTES // run.piece_bytes)
    return [
        replace(
            run,
            offset_bytes=run.offset_bytes + first * run.stride_bytes,
            num_pieces=min(most, run.num_pieces - first),
            destination_offset_bytes=run.destination_offset_bytes + first * run.piece_bytes,
        )
        for first in range(0, run.num_pieces, most)
    ]


class Meetings:
    """Where the ranks of a model meet: ``struct zse_ranks`` over memory that all of them map.

    Args:
        link: The other ranks.
        spec: This one's share of the model.
        rows: Of a step at most.
        wanted: Rows of logits at most.
        spin_nanoseconds: How long a rank looks for the others before it sleeps.
    """

    def __init__(
        self, link: RankLink, spec: ModelSpec, *, rows: int, wanted: int, spin_nanoseconds: int
    ) -> None:
        head, share = spec.head.rows, link.share
        assert head is not None
        numbers = max(rows * spec.hidden_size, wanted * head.each)
        slot_bytes = align_up(4 * numbers, _PAGE)
        bells_bytes = align_up(BELL_BYTES * share.ranks, _PAGE)
        address = link.memory(bells_bytes + _PARITIES * share.ranks * slot_bytes)
        self._link = link
        self.structure = structs.Ranks(
            slots=address + bells_bytes,
            bells=address,
            broken=link.broken_address,
            slot_bytes=slot_bytes,
            spin_nanoseconds=spin_nanoseconds,
            timeout_nanoseconds=_LONGEST_NANOSECONDS,
            num_tokens=spec.vocab_size,
            rank=share.rank,
            num_ranks=share.ranks,
        )
        self.pointer = ctypes.pointer(self.structure)
        self.is_first = share.rank == 0

    def check(self) -> None:
        """Refuse a step at which a rank was missing.

        Raises:
            DeviceError: One was; the message says why.
        """
        if self.structure.has_failed:
            self._link.check()
