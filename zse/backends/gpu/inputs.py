"""What a step tells the device: one block of numbers, laid out here, copied in one transfer.

A captured step reads its numbers from fixed addresses, so the layout is a function of the shape of
the step alone: rows, sequences, wanted rows, tiles.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 256
_TILES = ("tile_first_row", "tile_num_rows", "tile_table", "tile_first_position")
_ENTRIES = ("entry_row", "entry_token", "entry_penalty", "entry_add", "entry_seen")
_ARRAYS = (
    "tokens",
    "positions",
    "slots",
    "prefill_positions",
    "prefill_tables",
    *_TILES,
    "wanted",
    "sample_slots",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "uniform",
    "run_first",
    "run_length",
    "repetition",
    "presence",
    "frequency",
    "tables",
    *_ENTRIES,
)


@record
class InputShape:
    """How many of everything."""

    decode_rows: int
    """Rows that are one token of a sequence each; they come first."""
    prefill_rows: int = 0
    tiles: int = 0
    """Query tiles of the prefill rows."""
    sequences: int
    """Rows of the block table."""
    table_stride: int
    """Blocks a row of the block table has room for."""
    wanted: int
    """Rows that go through the head."""
    entries: int = 0
    """Room for logits that penalties, bias or bans change."""

    @property
    def rows(self) -> int:
        """Rows of the residual stream."""
        return self.decode_rows + self.prefill_rows

    @cached_property
    def layout(self) -> InputLayout:
        """Where each array lies."""
        return InputLayout(self)


class InputLayout:
    """Offsets in bytes of the arrays, each of 4-byte numbers and 256-byte aligned."""

    def __init__(self, shape: InputShape) -> None:
        counts = _counts(shape)
        self.offsets: dict[str, int] = {}
        offset = 0
        for name in _ARRAYS:
            self.offsets[name] = offset
            offset += -(-counts[name] * 4 // _ALIGNMENT) * _ALIGNMENT
        self.length_bytes = max(offset, _ALIGNMENT)

    def address(self, base: int, name: str) -> int:
        """Return the address of an array in a block that starts at ``base``."""
        return base + self.offsets[name]


def _counts(shape: InputShape) -> dict[str, int]:
    counts = dict.fromkeys(_ARRAYS, shape.wanted)
    counts.update({"tokens": shape.rows, "slots": shape.rows, "positions": shape.decode_rows})
    counts.update(dict.fromkeys(("prefill_positions", "prefill_tables"), shape.prefill_rows))
    counts.update(dict.fromkeys(_TILES, shape.tiles))
    counts.update(dict.fromkeys(_ENTRIES, shape.entries))
    counts["tables"] = shape.sequences * shape.table_stride
    return counts


class InputWriter:
    """Writes arrays into a block of host memory.

    Args:
        view: Writable bytes, at least ``layout.length_bytes``.
        layout: Where the arrays lie.
    """

    def __init__(self, view: memoryview, layout: InputLayout) -> None:
        bytes_view = view.cast("B") if view.format != "B" else view
        usable = bytes_view[: len(bytes_view) // 4 * 4]
        self._integers = usable.cast("i")
        self._floats = usable.cast("f")
        self._offsets = layout.offsets

    def integers(self, name: str, values: Sequence[int], first: int = 0) -> None:
        """Write int32 numbers from element ``first`` on."""
        if values:
            start = self._offsets[name] // 4 + first
            self._integers[start : start + len(values)] = _packed("i", values)

    def floats(self, name: str, values: Sequence[float]) -> None:
        """Write float32 numbers."""
        if values:
            start = self._offsets[name] // 4
            self._floats[start : start + len(values)] = _packed("f", values)


def _packed(kind: str, values: Sequence[float]) -> memoryview:
    packed = isinstance(values, array) and values.typecode == kind
    return memoryview(values if packed else array(kind, values))  # type: ignore[arg-type]
