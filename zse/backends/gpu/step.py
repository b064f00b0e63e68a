"""One forward pass, laid out for the device: rows, positions, tables, tiles, sampling.

Rows of single-token chunks come first; attention treats each as one query against its whole
sequence. Rows of longer chunks follow, cut into tiles of queries. A decode step that is to be
repeated from a captured graph is padded to its bucket: padding rows read token 0 of a block of
their own and sample into a slot of their own.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from zse.backends.gpu.inputs import InputShape, InputWriter
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.types import PENDING_TOKEN
from zse.errors import EngineError
from zse.kernels.attention.tiles import PrefillChunk, TileLists, prefill_tiles
from zse.kernels.lm_head_sample.arrays import SamplingKind
from zse.kernels.lm_head_sample.entries import NO_TOKEN, adjustment_entries
from zse.kernels.lm_head_sample.row import uniform_single
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.types import SequenceChunk, StepBatch
    from zse.kernels.lm_head_sample.entries import AdjustmentEntries


@record
class StepLimits:
    """What a chunk may ask for."""

    vocab_size: int
    num_blocks: int
    max_slots: int
    tile_queries: int
    """Queries in a tile of prefill attention."""
    table_stride: int
    """Blocks of the longest sequence."""


@record
class StepPlan:
    """A batch in the order of its rows."""

    batch: StepBatch
    decode: tuple[int, ...]
    """Chunks that are one token, by number."""
    prefill: tuple[int, ...]
    """Longer chunks."""
    sampled: tuple[int, ...]
    """Chunks that get a token, in the order of their rows."""
    kind: SamplingKind
    entries: AdjustmentEntries
    wanted_rows: tuple[int, ...] | None = None
    """Rows whose logits are asked for; None: those of ``sampled``."""

    @property
    def is_decode(self) -> bool:
        """Whether every chunk is one token that gets a successor: what graphs are captured for."""
        return not self.prefill and len(self.sampled) == len(self.decode)


def plan_step(batch: StepBatch, limits: StepLimits) -> StepPlan:
    """Check a batch and put its chunks in order.

    Raises:
        EngineError: A chunk is empty, holds an unknown token, or its blocks do not cover it.
    """
    chunks = batch.chunks
    if len(chunks) != len(batch.sampling):
        raise EngineError(
            f"{len(chunks)} chunks with {len(batch.sampling)} sampling rows; expected as many"
        )
    for chunk in chunks:
        _check_chunk(chunk, limits)
    decode = tuple(i for i, chunk in enumerate(chunks) if len(chunk.token_ids) == 1)
    prefill = tuple(i for i, chunk in enumerate(chunks) if len(chunk.token_ids) > 1)
    sampled = tuple(i for i in (*decode, *prefill) if batch.sampling[i] is not None)
    rows = [row for i in sampled if (row := batch.sampling[i]) is not None]
    return StepPlan(
        batch=batch,
        decode=decode,
        prefill=prefill,
        sampled=sampled,
        kind=SamplingKind.of(rows, limits.vocab_size),
        entries=adjustment_entries(rows, _pending_rows(chunks, sampled)),
        wanted_rows=_all_wanted(batch, decode, prefill),
    )


def shape_of(
    plan: StepPlan, limits: StepLimits, *, bucket: int = 0, entry_room: int = 0
) -> InputShape:
    """Return the shape of a step's inputs.

    Args:
        plan: The step.
        limits: For tiles and tables.
        bucket: Decode rows to pad to; 0 pads nothing.
        entry_room: Room for adjusted logits, if the step has any; 0 takes what it needs.
    """
    entry_room = entry_room or len(plan.entries.rows)
    chunks = plan.batch.chunks
    lengths = [len(chunks[i].token_ids) for i in plan.prefill]
    wanted = plan.sampled if plan.wanted_rows is None else plan.wanted_rows
    return InputShape(
        decode_rows=bucket or len(plan.decode),
        prefill_rows=sum(lengths),
        tiles=sum(-(-length // limits.tile_queries) for length in lengths),
        sequences=bucket or len(chunks),
        table_stride=limits.table_stride,
        wanted=bucket or len(wanted),
        entries=entry_room if plan.kind.adjusted else 0,
    )


def write_inputs(view: memoryview, plan: StepPlan, shape: InputShape, limits: StepLimits) -> None:
    """Write everything a step needs into host memory.

    Args:
        view: At least ``shape.layout.length_bytes`` bytes.
        plan: The step.
        shape: Its shape, padded or not.
        limits: For tiles and padding.
    """
    writer = InputWriter(view, shape.layout)
    chunks = plan.batch.chunks
    padding = shape.decode_rows - len(plan.decode)
    tokens = [chunks[i].token_ids[0] for i in plan.decode] + [0] * padding
    positions = [chunks[i].start_position for i in plan.decode] + [0] * padding
    slots = [chunks[i].sequence_slot for i in plan.decode] + [limits.max_slots] * padding
    prefill_positions: list[int] = []
    prefill_tables: list[int] = []
    for table, i in enumerate(plan.prefill, start=shape.decode_rows):
        chunk = chunks[i]
        tokens.extend(chunk.token_ids)
        end = chunk.start_position + len(chunk.token_ids)
        prefill_positions.extend(range(chunk.start_position, end))
        prefill_tables.extend([table] * len(chunk.token_ids))
    writer.integers("tokens", tokens)
    writer.integers("positions", positions)
    writer.integers("slots", slots + [limits.max_slots] * shape.prefill_rows)
    writer.integers("prefill_positions", prefill_positions)
    writer.integers("prefill_tables", prefill_tables)
    _write_tables(writer, plan, shape, limits)
    _write_tiles(writer, tiles_of(plan, shape, limits))
    _write_sampling(writer, plan, shape, limits)


def tiles_of(plan: StepPlan, shape: InputShape, limits: StepLimits) -> TileLists:
    """Cut the prefill chunks into tiles of queries; row 0 is the first prefill row."""
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
    return prefill_tiles(chunks, limits.tile_queries)


def last_rows(plan: StepPlan, shape: InputShape) -> dict[int, int]:
    """Return the row of each chunk's last token, by chunk number."""
    rows = {chunk: row for row, chunk in enumerate(plan.decode)}
    row = shape.decode_rows
    for i in plan.prefill:
        row += len(plan.batch.chunks[i].token_ids)
        rows[i] = row - 1
    return rows


def _write_tables(
    writer: InputWriter, plan: StepPlan, shape: InputShape, limits: StepLimits
) -> None:
    chunks = plan.batch.chunks
    for row, i in enumerate(plan.decode):
        writer.integers("tables", chunks[i].block_table, row * shape.table_stride)
    for row in range(len(plan.decode), shape.decode_rows):
        writer.integers("tables", [limits.num_blocks], row * shape.table_stride)
    for row, i in enumerate(plan.prefill, start=shape.decode_rows):
        writer.integers("tables", chunks[i].block_table, row * shape.table_stride)


def _write_tiles(writer: InputWriter, tiles: TileLists) -> None:
    writer.integers("tile_first_row", tiles.first_rows)
    writer.integers("tile_num_rows", tiles.num_rows)
    writer.integers("tile_table", tiles.table_rows)
    writer.integers("tile_first_position", tiles.first_positions)


def _write_sampling(
    writer: InputWriter, plan: StepPlan, shape: InputShape, limits: StepLimits
) -> None:
    if plan.wanted_rows is not None:
        writer.integers("wanted", plan.wanted_rows)
        return
    chunks, sampling = plan.batch.chunks, plan.batch.sampling
    row_of = last_rows(plan, shape)
    rows = [row for i in plan.sampled if (row := sampling[i]) is not None]
    padding = shape.wanted - len(rows)
    first_padding = len(plan.decode)
    padding_rows = list(range(first_padding, first_padding + padding))
    writer.integers("wanted", [row_of[i] for i in plan.sampled] + padding_rows)
    slots = [chunks[i].sequence_slot for i in plan.sampled] + [limits.max_slots] * padding
    writer.integers("sample_slots", slots)
    writer.floats("temperature", [row.temperature for row in rows] + [0.0] * padding)
    if plan.kind.random:
        draws = [uniform_single(row.seed, row.step) for row in rows]
        writer.floats("uniform", draws + [0.0] * padding)
    if plan.kind.truncated:
        writer.integers("top_k", [row.top_k for row in rows] + [0] * padding)
        writer.floats("top_p", [row.top_p for row in rows] + [1.0] * padding)
        writer.floats("min_p", [row.min_p for row in rows] + [0.0] * padding)
    if plan.kind.adjusted:
        _write_adjustments(writer, plan.entries, shape)


def _write_adjustments(writer: InputWriter, entries: AdjustmentEntries, shape: InputShape) -> None:
    unused = array("i", [NO_TOKEN]) * (shape.entries - len(entries.rows))
    writer.integers("entry_row", entries.rows)
    writer.integers("entry_token", entries.tokens + unused)
    writer.floats("entry_penalty", entries.penalties)
    writer.floats("entry_add", entries.additions)
    writer.integers("entry_seen", entries.seen)
    runs = entries.pending
    padding = array("i", bytes(4 * (shape.wanted - len(runs.length))))
    writer.integers("run_first", runs.first)
    writer.integers("run_length", runs.length + padding)
    writer.floats("repetition", runs.repetition)
    writer.floats("presence", runs.presence)
    writer.floats("frequency", runs.frequency)


def _pending_rows(chunks: Sequence[SequenceChunk], sampled: Sequence[int]) -> set[int]:
    """Return the sampled rows whose newest token only the device knows."""
    return {row for row, i in enumerate(sampled) if chunks[i].token_ids[0] == PENDING_TOKEN}


def _all_wanted(
    batch: StepBatch, decode: Sequence[int], prefill: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the rows of chunks that want all their logits; None when no chunk does."""
    if not any(chunk.wants_logits == "all" for chunk in batch.chunks):
        return None
    rows: list[int] = []
    first = 0
    for i in (*decode, *prefill):
        chunk = batch.chunks[i]
        count = len(chunk.token_ids)
        wanted = {"none": 0, "last": 1, "all": count}[chunk.wants_logits]
        rows.extend(range(first + count - wanted, first + count))
        first += count
    return tuple(rows)


def _check_chunk(chunk: SequenceChunk, limits: StepLimits) -> None:
    length = len(chunk.token_ids)
    end = chunk.start_position + length
    needed = -(-end // BLOCK_SIZE)
    if not length or chunk.start_position < 0 or len(chunk.block_table) < needed:
        raise EngineError(
            f"a chunk of {length} tokens at position {chunk.start_position} has "
            f"{len(chunk.block_table)} blocks; expected at least one token and {needed} blocks"
        )
    if len(chunk.block_table) > limits.table_stride:
        raise EngineError(
            f"a sequence has {len(chunk.block_table)} blocks; at most {limits.table_stride} fit"
        )
    if not 0 <= chunk.sequence_slot < limits.max_slots:
        raise EngineError(f"slot {chunk.sequence_slot} is outside 0 to {limits.max_slots - 1}")
    low = PENDING_TOKEN if length == 1 else 0
    if min(chunk.token_ids) < low or max(chunk.token_ids) >= limits.vocab_size:
        raise EngineError(f"a token id is outside 0 to {limits.vocab_size - 1}")
    if min(chunk.block_table) < 0 or max(chunk.block_table) >= limits.num_blocks:
        raise EngineError(f"a block is outside 0 to {limits.num_blocks - 1}")
