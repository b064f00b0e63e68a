"""How to launch ``shrink`` and ``expand``. Neither torch nor triton is needed here."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ADAPTER_PROMPT_ROWS, ADAPTER_ROWS, Partials, Quantized
from zse.kernels.low_rank.variants import (
    COLUMNS,
    PIECE,
    RANKS,
    STEP_COLUMNS,
    expand_variant,
    shrink_variant,
)
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Plain

_CHUNKS = {ADAPTER_ROWS: (512, 12), ADAPTER_PROMPT_ROWS: (2048, 4)}
"""Least columns of a chunk, and most chunks, by the rows of a tile."""


@record
class AdaptedRows:
    """The rows of a step that have adapters, in tiles of one adapter each."""

    tiles: int
    tile_rows: int
    """Rows of a tile, of ``layout.adapter_tile_rows``."""
    rows: int
    """Address of int32 [tiles, tile_rows], -1 behind the last row of a tile."""
    places: int
    """Address of int32 [tiles]: where a tile's adapter is, see ``variants.PLACE_BYTES``; -1 for
    none."""

    @property
    def has_many_rows(self) -> bool:
        return self.tile_rows == ADAPTER_PROMPT_ROWS


@record
class AdaptedMatrix:
    """A matrix that adapters add to."""

    first_record: int
    """Number of its first part's record, from the start of an adapter."""
    starts: int
    """Address of int32 [parts + 1]: the columns of the product at which parts begin, in pieces."""
    parts: int
    widest_part: int
    """Columns."""
    memory: int
    """Address of the memory that adapters lie in, their records and their numbers."""
    most_rank: int
    """Largest rank of an adapter, a multiple of ``RANKS``."""


def shrink(
    launcher: Launcher,
    matrix: AdaptedMatrix,
    adapted: AdaptedRows,
    inputs: Activation,
    workspace_address: int,
) -> None:
    """Write what the first matrices of the rows' adapters make of a matrix's inputs.

    Args:
        inputs: [rows, K]; K a multiple of 16. Int8 where tiles are of few rows.
        workspace_address: float32, ``workspace_bytes`` of them, which ``expand`` reads.

    Raises:
        UnsupportedModelError: A row of the inputs is no multiple of 16 long.
    """
    check_row(inputs.columns, "reads")
    quantized = isinstance(inputs, Quantized)
    launcher.launch(
        shrink_variant(many=adapted.has_many_rows, quantized=quantized),
        (
            adapted.tiles,
            matrix.parts * (matrix.most_rank // RANKS),
            splits_of(inputs.columns, adapted.tile_rows),
        ),
        inputs.codes if isinstance(inputs, Quantized) else inputs.values,
        inputs.scales if isinstance(inputs, Quantized) else 0,
        adapted.rows,
        adapted.places,
        matrix.memory,
        workspace_address,
        matrix.first_record,
        inputs.columns,
        _chunk_of(inputs.columns, adapted.tile_rows),
        matrix.most_rank,
    )


def expand(
    launcher: Launcher,
    matrix: AdaptedMatrix,
    adapted: AdaptedRows,
    columns: int,
    outputs: Partials | Plain,
    workspace_address: int,
) -> None:
    """Add to a product what the second matrices make of what ``shrink`` left.

    Args:
        columns: K, of the inputs.
        outputs: The product [rows, N]; N a multiple of 16. Of summands the first is added to.

    Raises:
        UnsupportedModelError: A row of the product is no multiple of 16 long.
    """
    check_row(outputs.columns, "writes")
    element = "fp32" if isinstance(outputs, Partials) else "bf16"
    launcher.launch(
        expand_variant(many=adapted.has_many_rows, element=element),
        (adapted.tiles, -(-matrix.widest_part // COLUMNS), matrix.parts),
        workspace_address,
        adapted.rows,
        adapted.places,
        matrix.memory,
        matrix.starts,
        outputs.values,
        matrix.first_record,
        outputs.columns,
        splits_of(columns, adapted.tile_rows),
        matrix.most_rank,
    )


def check_row(columns: int, does: str) -> None:
    """Refuse a matrix whose rows the kernels do not take.

    Raises:
        UnsupportedModelError: They are no multiple of 16 long.
    """
    if columns % 16:
        raise UnsupportedModelError(
            f"an adapter cannot be added to a matrix that {does} {columns} columns; expected a "
            "multiple of 16",
            hint="Merge it into the file: zse convert MODEL --merge-lora PATH.",
        )


def splits_of(columns: int, tile_rows: int) -> int:
    """Return the chunks in which so many columns are summed: the same for any rows beside."""
    return -(-columns // _chunk_of(columns, tile_rows))


def _chunk_of(columns: int, tile_rows: int) -> int:
    """Return the columns of a chunk: shorter where few rows make few programs."""
    least, most_splits = _CHUNKS[tile_rows]
    return max(least, align_up(-(-columns // most_splits), STEP_COLUMNS))


def workspace_bytes(columns: int, parts: int, most_rank: int, *, tiles: int, tile_rows: int) -> int:
    """Return the bytes that ``shrink`` hands on to ``expand`` for a matrix of so many columns."""
    return 4 * splits_of(columns, tile_rows) * tiles * tile_rows * parts * most_rank


def packed_starts(columns: Sequence[int]) -> bytes:
    """Return ``AdaptedMatrix.starts`` of parts of so many columns each.

    Raises:
        UnsupportedModelError: A part is no multiple of 8 columns.
    """
    starts = [0]
    for count in columns:
        if count % PIECE:
            raise UnsupportedModelError(
                f"an adapter cannot be added to a part of {count} columns of a matrix; expected a "
                f"multiple of {PIECE}"
            )
        starts.append(starts[-1] + count // PIECE)
    return struct.pack(f"<{len(starts)}i", *starts)
