"""The rows of a step that have adapters, in tiles of rows with one adapter each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import adapter_tile_rows
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.backends.types import SequenceChunk


@record
class AdapterTiles:
    """Tiles, as ``zse.kernels.low_rank.launch.AdaptedRows`` has them."""

    rows: Sequence[int]
    places: Sequence[int]


def count_tiles(chunks: Sequence[SequenceChunk], prefill_rows: int) -> int:
    """Return the tiles of a step; 0 where no row has an adapter."""
    tile_rows = adapter_tile_rows(prefill_rows)
    counts: dict[int, int] = {}
    for chunk in chunks:
        if chunk.adapter is not None:
            place = chunk.adapter.place
            counts[place] = counts.get(place, 0) + len(chunk.token_ids)
    return sum(-(-count // tile_rows) for count in counts.values())


def adapter_tiles(placed: Iterable[tuple[SequenceChunk, int]], tile_rows: int) -> AdapterTiles:
    """Return the tiles of chunks, each with its first row in the step."""
    by_place: dict[int, list[int]] = {}
    for chunk, first_row in placed:
        if chunk.adapter is not None:
            rows = by_place.setdefault(chunk.adapter.place, [])
            rows.extend(range(first_row, first_row + len(chunk.token_ids)))
    found: list[int] = []
    places: list[int] = []
    for place, rows in by_place.items():
        found += [*rows, *[-1] * (-len(rows) % tile_rows)]
        places += [place] * (-(-len(rows) // tile_rows))
    return AdapterTiles(rows=found, places=places)
