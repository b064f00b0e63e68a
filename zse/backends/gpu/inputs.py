"""What a step tells the device: one block of numbers, laid out here, copied in one transfer.

A captured step reads its numbers from fixed addresses, so the layout is a function of the shape of
the step alone: rows, sequences, wanted rows, tiles.
"""

from __future__ import annotations

from array import array
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from zse.kernels.layout import adapter_tile_rows
from zse.kernels.lm_head_sample.arrays import Floats, Integers, SamplingArrays, integers
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALIGNMENT = 256


@record
class StepArrays:
    """The arrays of a step's inputs: where they start in its block, or in the device's memory."""

    tokens: Integers = integers("rows")
    slots: Integers = integers("rows")
    positions: Integers = integers("decode_rows")
    state_slots: Integers = integers("state_rows")
    state_runs: Integers = integers("state_rows")
    prefill_positions: Integers = integers("prefill_rows")
    prefill_tables: Integers = integers("prefill_rows")
    tile_first_rows: Integers = integers("tiles")
    tile_num_rows: Integers = integers("tiles")
    tile_table_rows: Integers = integers("tiles")
    tile_first_positions: Integers = integers("tiles")
    tile_ends: Integers = integers("tiles")
    context_first_rows: Integers = integers("context_tiles")
    context_num_rows: Integers = integers("context_tiles")
    context_first_positions: Integers = integers("context_tiles")
    context_lines: Integers = integers("context_tiles")
    context_blocks: Integers = integers("context_blocks")
    types: Integers = integers("typed_rows")
    run_first_rows: Integers = integers("runs")
    run_num_rows: Integers = integers("runs")
    run_first_positions: Integers = integers("runs")
    run_slots: Integers = integers("runs")
    adapter_rows: Integers = integers("adapter_rows")
    adapter_places: Integers = integers("adapter_tiles")
    wanted: Integers = integers("wanted")
    tables: Integers = integers("table_blocks")
    window_tables: Integers = integers("window_blocks")
    sampling: SamplingArrays
    """One element a wanted row, or one an entry."""


@record
class InputShape:
    """How many of everything."""

    decode_rows: int
    """Rows that are computed each on its own; they come first."""
    rows_follow: bool = False
    """Whether some of these follow each other in one sequence."""
    state_rows: int = 0
    """All of these, where drafts leave states; else none."""
    prefill_rows: int = 0
    tiles: int = 0
    """Query tiles of the prefill rows."""
    context_blocks: int = 0
    """Blocks of the prefill rows' sequences where they are copied to lines; else none."""
    context_tiles: int = 0
    """Query tiles over these lines."""
    typed_rows: int = 0
    """All rows where some token is of the second type, which an encoder tells apart; else none."""
    runs: int = 0
    """Sequences that the prefill rows are of."""
    longest_run: int = 0
    """Prefill rows of one sequence at most."""
    sequences: int
    """Rows of the block table."""
    table_stride: int
    """Blocks a row of the block table has room for."""
    windows: int = 0
    """Groups of layers that see only a window; each has a block table of its own."""
    wanted: int
    """Rows that go through the head."""
    entries: int = 0
    """Room for logits that penalties, bias or bans change."""
    adapter_tiles: int = 0
    """Tiles of rows that have one adapter each; 0 where no row has one."""

    @property
    def rows(self) -> int:
        return self.decode_rows + self.prefill_rows

    @property
    def adapter_tile_rows(self) -> int:
        """Rows of a tile of rows with one adapter."""
        return adapter_tile_rows(self.prefill_rows)

    @property
    def adapter_rows(self) -> int:
        return self.adapter_tiles * self.adapter_tile_rows

    @property
    def table_blocks(self) -> int:
        return self.sequences * self.table_stride

    @property
    def window_blocks(self) -> int:
        return self.windows * self.table_blocks

    @property
    def length_bytes(self) -> int:
        return _layout(self, 0)[1]

    def arrays_at(self, address: int) -> StepArrays:
        """Return where the arrays are when the block is at an address."""
        return _layout(self, address)[0]


@lru_cache(maxsize=256)
def _layout(shape: InputShape, start: int) -> tuple[StepArrays, int]:
    """Cut up a block into arrays that start at multiples of 256 bytes; return its bytes too."""
    end = start

    def place(arrays: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, Any]:
        nonlocal end
        places: dict[str, Any] = {}
        for name, count in arrays.items():
            places[name] = end
            end += align_up(4 * counts[count], _ALIGNMENT)
        return places

    own = place(_STEP_COUNTS, {name: getattr(shape, name) for name in _COUNTS})
    sampling = place(_SAMPLING_COUNTS, {"rows": shape.wanted, "entries": shape.entries})
    offsets = StepArrays(**own, sampling=SamplingArrays(**sampling))
    return offsets, max(end - start, _ALIGNMENT)


def _counts_of(arrays: type) -> dict[str, str]:
    """Return what each array of a record has as many elements as."""
    counts = {entry.name: entry.metadata.get("count") for entry in fields(arrays)}
    return {name: count for name, count in counts.items() if count}


_STEP_COUNTS, _SAMPLING_COUNTS = _counts_of(StepArrays), _counts_of(SamplingArrays)
_COUNTS = frozenset(_STEP_COUNTS.values())


class InputWriter:
    """Writes arrays into a block of host memory, as long as its shape asks for."""

    def __init__(self, view: memoryview, shape: InputShape) -> None:
        bytes_view = view.cast("B") if view.format != "B" else view
        usable = bytes_view[: len(bytes_view) // 4 * 4]
        self._integers = usable.cast("i")
        self._floats = usable.cast("f")
        self.arrays = shape.arrays_at(0)

    def integers(self, at: Integers, values: Sequence[int], first: int = 0) -> None:
        """Write int32 numbers from element ``first`` on."""
        if values:
            start = at // 4 + first
            self._integers[start : start + len(values)] = _packed("i", values)

    def floats(self, at: Floats, values: Sequence[float]) -> None:
        if values:
            start = at // 4
            self._floats[start : start + len(values)] = _packed("f", values)


def _packed(kind: str, values: Sequence[float]) -> memoryview:
    packed = isinstance(values, array) and values.typecode == kind
    return memoryview(values if packed else array(kind, values))  # type: ignore[arg-type]
