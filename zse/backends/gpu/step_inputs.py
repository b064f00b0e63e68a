"""A step's inputs, written where the kernels read them: see ``zse.backends.gpu.step``."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING

from zse.backends.gpu.inputs import InputWriter
from zse.backends.gpu.kinds import adapter_tiles_of
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.step import wanted_rows
from zse.kernels.attention.context import context_entries
from zse.kernels.attention.tiles import PrefillChunk, TileLists, prefill_tiles
from zse.kernels.lm_head_sample.entries import NO_TOKEN
from zse.kernels.lm_head_sample.row import uniform_single

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.gpu.draft_states import StateRows
    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.step import StepLimits, StepPlan
    from zse.backends.types import SequenceChunk
    from zse.kernels.lm_head_sample.entries import AdjustmentEntries

UNSEEN_BLOCKS = 1
"""Blocks before a window in which a tile of keys may begin; what is there must be numbers."""


def write_inputs(view: memoryview, plan: StepPlan, shape: InputShape, limits: StepLimits) -> None:
    """Write everything a step needs into host memory of ``shape.length_bytes`` or more."""
    writer = InputWriter(view, shape)
    chunks = plan.batch.chunks
    padding = shape.decode_rows - plan.single_rows
    tokens, positions, slots = _single_tokens([chunks[i] for i in plan.single])
    tokens += [0] * padding
    positions += [0] * padding
    slots += [limits.max_slots] * padding
    prefill_positions: list[int] = []
    prefill_tables: list[int] = []
    for table, i in enumerate(plan.prefill, start=shape.decode_rows):
        chunk = chunks[i]
        tokens.extend(chunk.token_ids)
        end = chunk.start_position + len(chunk.token_ids)
        prefill_positions.extend(range(chunk.start_position, end))
        prefill_tables.extend([table] * len(chunk.token_ids))
    writer.integers(writer.arrays.tokens, tokens)
    writer.integers(writer.arrays.positions, positions)
    writer.integers(writer.arrays.slots, slots + [limits.max_slots] * shape.prefill_rows)
    writer.integers(writer.arrays.prefill_positions, prefill_positions)
    writer.integers(writer.arrays.prefill_tables, prefill_tables)
    _write_tables(writer, plan, shape, limits)
    _write_runs(writer, [chunks[i] for i in plan.prefill])
    if plan.states is not None:
        _write_states(writer, plan.states, padding, limits.max_slots)
    if shape.typed_rows:
        _write_types(writer, [chunks[i] for i in plan.prefill])
    _write_tiles(writer, tiles_of(plan, shape, limits.tile_queries))
    if shape.context_blocks:
        tiles = tiles_of(plan, shape, limits.context_queries)
        _write_context(writer, plan, tiles, shape.decode_rows)
    if shape.adapter_tiles:
        _write_adapters(writer, plan, shape)
    _write_sampling(writer, plan, shape, limits)


def tiles_of(plan: StepPlan, shape: InputShape, queries: int) -> TileLists:
    """Cut the prefill chunks into tiles of so many queries; row 0 is the first prefill row."""
    chunks: list[PrefillChunk] = []
    first_row = 0
    for table, i in enumerate(plan.prefill, start=shape.decode_rows):
        chunk = plan.batch.chunks[i]
        chunks.append(
            PrefillChunk(
                first_row=first_row,
                num_rows=len(chunk.token_ids),
                table_row=table,
                first_position=chunk.start_position,
            )
        )
        first_row += len(chunk.token_ids)
    return prefill_tiles(chunks, queries)


def _single_tokens(chunks: Sequence[SequenceChunk]) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens, the positions and the slots of single rows."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for chunk in chunks:
        count, start = len(chunk.token_ids), chunk.start_position
        tokens.extend(chunk.token_ids)
        positions.extend(range(start, start + count))
        slots.extend([chunk.sequence_slot] * count)
    return tokens, positions, slots


def _chunks_of_tables(plan: StepPlan, shape: InputShape) -> Iterator[tuple[int, SequenceChunk]]:
    """Yield each row of the block tables that is no padding, and whose it is.

    Each single row has one, those of one sequence the same.
    """
    chunks = plan.batch.chunks
    rows = itertools.count()
    for i in plan.single:
        yield from ((next(rows), chunks[i]) for _ in chunks[i].token_ids)
    yield from enumerate((chunks[i] for i in plan.prefill), start=shape.decode_rows)


def _write_tables(
    writer: InputWriter, plan: StepPlan, shape: InputShape, limits: StepLimits
) -> None:
    for row, chunk in _chunks_of_tables(plan, shape):
        writer.integers(writer.arrays.tables, chunk.block_table, row * shape.table_stride)
    for row in range(plan.single_rows, shape.decode_rows):
        writer.integers(writer.arrays.tables, [limits.num_blocks], row * shape.table_stride)
    for number in range(len(limits.windows)):
        _write_window_tables(writer, plan, shape, limits, number)


def _write_window_tables(
    writer: InputWriter, plan: StepPlan, shape: InputShape, limits: StepLimits, number: int
) -> None:
    """Write the tables of one group of windows, as far as kernels look at them."""
    stride, tables = shape.table_stride, writer.arrays.window_tables
    unseen = limits.windows[number].num_blocks
    first_row = number * shape.sequences
    for row, chunk in _chunks_of_tables(plan, shape):
        start = (first_row + row) * stride
        if not chunk.windows:
            writer.integers(tables, chunk.block_table, start)
            continue
        own = chunk.windows[number]
        before = min(own.first, UNSEEN_BLOCKS)
        writer.integers(tables, [unseen] * before + own.blocks, start + own.first - before)
    for row in range(first_row + plan.single_rows, first_row + shape.decode_rows):
        writer.integers(tables, [unseen], row * stride)


def _write_runs(writer: InputWriter, chunks: Sequence[SequenceChunk]) -> None:
    lengths = [len(chunk.token_ids) for chunk in chunks]
    ends = itertools.accumulate(lengths)
    arrays = writer.arrays
    writer.integers(arrays.run_first_rows, [end - n for end, n in zip(ends, lengths, strict=True)])
    writer.integers(arrays.run_num_rows, lengths)
    writer.integers(arrays.run_first_positions, [chunk.start_position for chunk in chunks])
    writer.integers(arrays.run_slots, [chunk.sequence_slot for chunk in chunks])


def _write_states(writer: InputWriter, states: StateRows, padding: int, padding_slot: int) -> None:
    arrays = writer.arrays
    writer.integers(arrays.state_slots, [*states.single, *[padding_slot] * padding])
    writer.integers(arrays.state_runs, [*states.runs, *[1] * padding])
    writer.integers(arrays.run_slots, states.prefill)


def _write_types(writer: InputWriter, texts: Sequence[SequenceChunk]) -> None:
    types: list[int] = []
    for text in texts:
        count = len(text.token_ids)
        first = count if text.second_from is None else text.second_from
        types += [0] * first + [1] * (count - first)
    writer.integers(writer.arrays.types, types)


def _write_tiles(writer: InputWriter, tiles: TileLists) -> None:
    writer.integers(writer.arrays.tile_first_rows, tiles.first_rows)
    writer.integers(writer.arrays.tile_num_rows, tiles.num_rows)
    writer.integers(writer.arrays.tile_table_rows, tiles.table_rows)
    writer.integers(writer.arrays.tile_first_positions, tiles.first_positions)
    writer.integers(writer.arrays.tile_ends, tiles.ends)


def _write_context(writer: InputWriter, plan: StepPlan, tiles: TileLists, first_table: int) -> None:
    """Write the blocks that are copied to lines, and the tiles over them.

    With each tile goes where its sequence begins there.
    """
    entries: list[int] = []
    first_lines: list[int] = []
    for i in plan.prefill:
        chunk = plan.batch.chunks[i]
        first_lines.append(len(entries) * BLOCK_SIZE)
        end = chunk.start_position + len(chunk.token_ids)
        entries += context_entries(chunk.block_table, end)
    lines = [first_lines[table - first_table] for table in tiles.table_rows]
    writer.integers(writer.arrays.context_blocks, entries)
    writer.integers(writer.arrays.context_first_rows, tiles.first_rows)
    writer.integers(writer.arrays.context_num_rows, tiles.num_rows)
    writer.integers(writer.arrays.context_first_positions, tiles.first_positions)
    writer.integers(writer.arrays.context_lines, lines)


def _write_adapters(writer: InputWriter, plan: StepPlan, shape: InputShape) -> None:
    placed: list[tuple[SequenceChunk, int]] = []
    for order, first in ((plan.single, 0), (plan.prefill, shape.decode_rows)):
        end = first
        for i in order:
            chunk = plan.batch.chunks[i]
            placed.append((chunk, end))
            end += len(chunk.token_ids)
    tiles = adapter_tiles_of(placed, shape.adapter_tile_rows)
    padding = [-1] * (shape.adapter_tiles - len(tiles.places))
    writer.integers(writer.arrays.adapter_rows, tiles.rows)
    writer.integers(writer.arrays.adapter_places, [*tiles.places, *padding])


def _write_sampling(
    writer: InputWriter, plan: StepPlan, shape: InputShape, limits: StepLimits
) -> None:
    wanted, rows = wanted_rows(plan, shape.decode_rows), plan.sampling
    padding = shape.wanted - len(wanted)
    first_padding = plan.single_rows
    writer.integers(
        writer.arrays.wanted, wanted + list(range(first_padding, first_padding + padding))
    )
    if plan.wants_logits:
        return
    arrays = writer.arrays.sampling
    slots = _slots_of(plan, limits.max_slots)
    writer.integers(arrays.slots, slots + [limits.max_slots] * padding)
    writer.floats(arrays.temperature, [row.temperature for row in rows] + [0.0] * padding)
    if plan.sampling_kind.random:
        draws = [uniform_single(row.seed, row.step) for row in rows]
        writer.floats(arrays.uniform, draws + [0.0] * padding)
    if plan.sampling_kind.truncated:
        writer.integers(arrays.top_k, [row.top_k for row in rows] + [0] * padding)
        writer.floats(arrays.top_p, [row.top_p for row in rows] + [1.0] * padding)
        writer.floats(arrays.min_p, [row.min_p for row in rows] + [0.0] * padding)
    if plan.sampling_kind.masked:
        writer.integers(arrays.mask_row, [*plan.mask_rows, *[-1] * padding])
    if plan.sampling_kind.adjusted:
        _write_adjustments(writer, plan.entries, shape)


def _slots_of(plan: StepPlan, nobody: int) -> list[int]:
    """Return the slot that keeps the token of each sampled row; ``nobody`` reads the last one."""
    chunks, sampled = plan.batch.chunks, plan.sampled
    # Which of a chunk's drafts stand only the host finds out: it names the last one itself.
    slots = [nobody if chunks[i].kind == "verify" else chunks[i].sequence_slot for i in sampled]
    for row, chunk in enumerate(sampled[1:]):
        if chunk == sampled[row]:
            slots[row] = nobody
    return slots


def _write_adjustments(writer: InputWriter, entries: AdjustmentEntries, shape: InputShape) -> None:
    arrays = writer.arrays.sampling
    unused = array("i", [NO_TOKEN]) * (shape.entries - len(entries.rows))
    writer.integers(arrays.entry_row, entries.rows)
    writer.integers(arrays.entry_token, entries.tokens + unused)
    writer.floats(arrays.entry_penalty, entries.penalties)
    writer.floats(arrays.entry_add, entries.additions)
    writer.integers(arrays.entry_seen, entries.seen)
    runs = entries.pending
    padding = array("i", bytes(4 * (shape.wanted - len(runs.length))))
    writer.integers(arrays.run_first, runs.first)
    writer.integers(arrays.run_length, runs.length + padding)
    writer.floats(arrays.repetition, runs.repetition)
    writer.floats(arrays.presence, runs.presence)
    writer.floats(arrays.frequency, runs.frequency)
