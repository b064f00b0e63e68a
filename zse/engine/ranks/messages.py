"""What rank 0 tells the others: steps and what else all ranks do alike, as MessagePack.

A step says all that it is, but for block tables: of those only what is new goes out, since most
grow by a block every few steps. Both sides keep the table of each slot as it was sent last.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.wire_rows import STEP_KINDS, PlainRow, plain_values, sampling_values
from zse.errors import UnsupportedModelError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kv.windows import WindowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from zse.backends.types import TokenMasks


class Row(PlainRow, array_like=True, gc=False):
    """A ``SamplingRow``; its texts are sent where penalties look at them."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    prompt_token_ids: list[int] = msgspec.field(default_factory=list)
    output_token_ids: list[int] = msgspec.field(default_factory=list)


_COUNTED = Row.__struct_fields__[len(PlainRow.__struct_fields__) :]
_counted = attrgetter(*_COUNTED)


class Window(msgspec.Struct, array_like=True, gc=False):
    """A ``WindowTable``."""

    first: int
    blocks: list[int]


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """A ``SequenceChunk``."""

    slot: int
    token_ids: list[int]
    start_position: int
    num_kept: int
    """Blocks at the beginning of the slot's table that are those of the last time."""
    blocks: list[int]
    """Those behind them."""
    kind: int
    wants_logits: bool
    restored_from: int | None
    saved_to: int | None
    windows: list[Window | None]
    rows: list[Row]


class Step(msgspec.Struct, array_like=True, tag="step"):
    """A step; masks follow when they are known."""

    chunks: list[Chunk]
    has_masks: bool


class Masks(msgspec.Struct, array_like=True, tag="masks"):
    """The masks of the step before, as they lie in memory."""

    data: bytes


class Logits(msgspec.Struct, array_like=True, tag="logits"):
    """``ModelRunner.logits``, whose result rank 0 has."""

    token_ids: list[int]
    chunk_tokens: int


class Rest(msgspec.Struct, array_like=True, tag="rest"):
    """``ModelRunner.rest``."""

    free_blocks: list[list[int]]


class End(msgspec.Struct, array_like=True, tag="end"):
    """The model is closed."""


Message = Step | Masks | Logits | Rest | End
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encoded(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decoded(data: Buffer) -> Message:
    return _DECODER.decode(data)


class BlockTables:
    """The block table of each slot, as both sides know it."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}

    def new_part(self, slot: int, table: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many blocks of a table are as they were, and those behind them; keep it."""
        known = self._tables.get(slot, [])
        count = min(len(known), len(table))
        if known[:count] == list(table[:count]):
            if len(table) == count:
                return count, []
            rest = list(table[count:])
            self._tables[slot] = known[:count] + rest
            return count, rest
        self._tables[slot] = rest = list(table)
        return 0, rest

    def table(self, slot: int, num_kept: int, blocks: list[int]) -> list[int]:
        """Return the table that ``new_part`` was given on the other side."""
        known = self._tables.get(slot, [])
        if not blocks:
            return known[:num_kept]
        self._tables[slot] = table = known[:num_kept] + blocks
        return table


def message_of(batch: StepBatch, tables: BlockTables) -> Step:
    """Return a step as it is sent.

    Raises:
        UnsupportedModelError: A chunk has an adapter.
    """
    chunks = []
    for chunk, rows in zip(batch.chunks, batch.sampling, strict=True):
        if chunk.adapter is not None:
            raise UnsupportedModelError("several ranks add no adapters")
        num_kept, blocks = tables.new_part(chunk.sequence_slot, chunk.block_table)
        chunks.append(
            Chunk(
                chunk.sequence_slot,
                list(chunk.token_ids),
                chunk.start_position,
                num_kept,
                blocks,
                STEP_KINDS.index(chunk.kind),
                chunk.wants_logits,
                chunk.restored_from,
                chunk.saved_to,
                [_window_of(one) for one in chunk.windows],
                [_row_of(row) for row in rows],
            )
        )
    return Step(chunks, batch.masks is not None)


def batch_of(step: Step, tables: BlockTables, masks: TokenMasks | None) -> StepBatch:
    """Return the step that another rank sent."""
    chunks = [
        SequenceChunk(
            one.slot,
            one.token_ids,
            one.start_position,
            tables.table(one.slot, one.num_kept, one.blocks),
            STEP_KINDS[one.kind],
            one.wants_logits,
            one.restored_from,
            one.saved_to,
            windows=_windows_of(one.windows),
        )
        for one in step.chunks
    ]
    sampling = [[_sampling_of(row) for row in one.rows] for one in step.chunks]
    return StepBatch(chunks=chunks, sampling=sampling, masks=masks)


def _window_of(table: WindowTable | None) -> Window | None:
    return None if table is None else Window(table.first, table.blocks)


def _windows_of(windows: list[Window | None]) -> Any:
    return [
        None if one is None else WindowTable(first=one.first, blocks=one.blocks) for one in windows
    ]


def _row_of(row: SamplingRow) -> Row:
    looks_back = row.has_penalty
    counted = (
        row.repetition_penalty,
        row.presence_penalty,
        row.frequency_penalty,
        dict(row.logit_bias),
        list(row.prompt_token_ids) if looks_back else [],
        list(row.output_token_ids) if looks_back else [],
    )
    return Row(*(*plain_values(row), *counted))


def _sampling_of(row: Row) -> SamplingRow:
    values = sampling_values(row)
    values.update(zip(_COUNTED, _counted(row), strict=True))
    return SamplingRow(**values)
