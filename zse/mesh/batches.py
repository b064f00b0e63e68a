"""Steps as bytes: chunks, sampling rows and masks, and the tokens that come back.

The history of penalties is counted where the sequence is known, at the front, so that a step costs
what its entries cost and not its texts.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

from zse.backends.types import SampledToken, SequenceChunk, StepBatch, mask_bytes
from zse.engine.wire_rows import (
    STEP_KINDS,
    GivenMasks,
    PlainRow,
    numbers,
    plain_values,
    sampling_values,
)
from zse.errors import EngineError, MeshError
from zse.kernels.lm_head_sample.entries import AdjustmentHistory
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.mesh.messages import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.types import Answers, TokenMasks

_MOST_LOGPROBS = 1 << 20


class WireChunk(msgspec.Struct, array_like=True):
    slot: int
    tokens: bytes
    start: int
    blocks: bytes
    kind: int


class WireRow(PlainRow, array_like=True, gc=False):
    """A ``SamplingRow``, with what its penalties have come to."""

    tokens: bytes = b""
    penalties: bytes = b""
    additions: bytes = b""


class WireBatch(msgspec.Struct, array_like=True):
    chunks: list[WireChunk]
    rows: list[list[WireRow]]
    masks: bytes = b""


class WireToken(msgspec.Struct, array_like=True):
    token_id: int
    logprob: float | None = None
    top: list[tuple[int, float]] = []
    hidden: bytes = b""


class WireTokens(msgspec.Struct, array_like=True):
    chunks: list[list[WireToken]]
    error: str = ""


class CountedHistory(AdjustmentHistory):
    """Adjustments that another machine has counted."""

    def __init__(self, row: WireRow) -> None:
        super().__init__()
        self.tokens = numbers("i", row.tokens)
        self.penalties = numbers("f", row.penalties)
        self.additions = numbers("f", row.additions)
        if not len(self.tokens) == len(self.penalties) == len(self.additions):
            raise MeshError("adjustments of a row have lists of different lengths")

    def advance(self, row: SamplingRow) -> None:
        """Nothing has come since."""


def write_batch(batch: StepBatch, vocab_size: int) -> bytes:
    """Return a step as bytes; its masks are asked for now."""
    chunks = [
        WireChunk(
            chunk.sequence_slot,
            array("i", chunk.token_ids).tobytes(),
            chunk.start_position,
            array("i", chunk.block_table).tobytes(),
            STEP_KINDS.index(chunk.kind),
        )
        for chunk in batch.chunks
    ]
    rows = [[_wire_row(row) for row in rows] for rows in batch.sampling]
    return encode(WireBatch(chunks, rows, _masks(batch, vocab_size)))


def read_batch(data: bytes | memoryview, vocab_size: int) -> StepBatch:
    """Return the step again.

    Raises:
        MeshError: The bytes are no step. Whether it fits the model is checked with its use.
    """
    found = decode(data, WireBatch)
    try:
        chunks = [_chunk(chunk) for chunk in found.chunks]
        rows = [[_row(row, vocab_size) for row in rows] for rows in found.rows]
    except EngineError as error:
        raise MeshError(str(error)) from None
    num_masked = sum(row.is_masked for each in rows for row in each)
    if len(found.masks) != num_masked * mask_bytes(vocab_size):
        raise MeshError(f"{num_masked} rows are masked by {len(found.masks)} bytes")
    masks = GivenMasks(found.masks) if num_masked else None
    return StepBatch(chunks=chunks, sampling=rows, masks=masks)


def write_tokens(answers: Answers) -> bytes:
    return encode(WireTokens([[_wire_token(token) for token in each] for each in answers]))


def read_tokens(data: bytes | memoryview) -> Answers:
    """Return the tokens that follow each chunk.

    Raises:
        MeshError: The bytes are none, or say why there are none.
    """
    found = decode(data, WireTokens)
    if found.error:
        raise MeshError(found.error)
    return [[_token(token) for token in each] for each in found.chunks]


def _masks(batch: StepBatch, vocab_size: int) -> bytes:
    masks: TokenMasks | None = batch.masks
    if masks is None:
        return b""
    count = sum(row.is_masked for rows in batch.sampling for row in rows)
    row_bytes = mask_bytes(vocab_size)
    data = array("I", bytes(count * row_bytes))
    masks.write(data.buffer_info()[0], row_bytes)
    return data.tobytes()


def _chunk(chunk: WireChunk) -> SequenceChunk:
    if not 0 <= chunk.kind < len(STEP_KINDS):
        raise MeshError(f"a chunk has the unknown kind {chunk.kind}")
    tokens, blocks = numbers("i", chunk.tokens), numbers("i", chunk.blocks)
    if not tokens or not blocks or chunk.slot < 0:
        raise MeshError(f"a chunk of slot {chunk.slot} has no tokens or no blocks")
    kind = STEP_KINDS[chunk.kind]
    return SequenceChunk(chunk.slot, list(tokens), chunk.start, list(blocks), kind)


def _wire_row(row: SamplingRow) -> WireRow:
    entries: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    if row.has_penalty or row.logit_bias:
        history = row.history
        history.advance(row)
        arrays = (history.tokens, history.penalties, history.additions)
        entries = (arrays[0].tobytes(), arrays[1].tobytes(), arrays[2].tobytes())
    return WireRow(*(*plain_values(row), *entries))


def _row(row: WireRow, vocab_size: int) -> SamplingRow:
    if row.logprobs is not None and not 0 <= row.logprobs <= _MOST_LOGPROBS:
        raise MeshError(f"a row asks for {row.logprobs} log-probabilities")
    history, values = CountedHistory(row), sampling_values(row)
    known = [] if row.known_token_id is None else [row.known_token_id]
    named = [*history.tokens, *values["banned_token_ids"], *known]
    if named and not 0 <= min(named) <= max(named) < vocab_size:
        raise MeshError(f"a row names tokens {min(named)} to {max(named)} of {vocab_size}")
    return SamplingRow(
        **values,
        # Says that there are entries: they have the penalties in them already.
        logit_bias=dict.fromkeys(history.tokens, 0.0),
        history=history,
    )


def _wire_token(token: SampledToken) -> WireToken:
    hidden = b"" if token.hidden is None else array("f", token.hidden).tobytes()
    return WireToken(token.token_id, token.logprob, list(token.top), hidden)


def _token(token: WireToken) -> SampledToken:
    hidden = list(numbers("f", token.hidden)) if token.hidden else None
    return SampledToken(token.token_id, token.logprob, token.top, hidden)


def num_rows(batch: StepBatch) -> int:
    """Return the rows of a step."""
    return sum(len(chunk.token_ids) for chunk in batch.chunks)


def written_blocks(batch: StepBatch, block_size: int) -> Sequence[int]:
    """Return the blocks that a step writes to."""
    blocks: set[int] = set()
    for chunk in batch.chunks:
        first = chunk.start_position // block_size
        end = -(-(chunk.start_position + len(chunk.token_ids)) // block_size)
        blocks.update(chunk.block_table[first:end])
    return sorted(blocks)
