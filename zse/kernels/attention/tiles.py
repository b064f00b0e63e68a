"""How the prefill attention cuts chunks of tokens into tiles, made on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable


@record
class PrefillChunk:
    """Consecutive new tokens of one sequence."""

    first_row: int
    """Row of the chunk's first token in the step."""
    num_rows: int
    table_row: int
    """Row of the sequence in the block tables."""
    first_position: int


@record
class TileLists:
    """One entry a tile in each list; they become int32 arrays on the device."""

    first_rows: list[int]
    num_rows: list[int]
    table_rows: list[int]
    first_positions: list[int]
    ends: list[int]
    """Positions behind the last token of each tile's chunk."""


def prefill_tiles(chunks: Iterable[PrefillChunk], queries: int) -> TileLists:
    """Cut chunks into tiles of at most ``queries`` tokens, shortest contexts first.

    The kernel takes tiles from the last: those with the most to read start first.
    """
    tiles = [
        (chunk.first_position + start, chunk.first_row + start, chunk, start)
        for chunk in chunks
        for start in range(0, chunk.num_rows, queries)
    ]
    tiles.sort(key=lambda tile: tile[:2])
    return TileLists(
        first_rows=[row for _, row, _, _ in tiles],
        num_rows=[min(queries, chunk.num_rows - start) for _, _, chunk, start in tiles],
        table_rows=[chunk.table_row for _, _, chunk, _ in tiles],
        first_positions=[position for position, _, _, _ in tiles],
        ends=[chunk.first_position + chunk.num_rows for _, _, chunk, _ in tiles],
    )
