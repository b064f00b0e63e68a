"""A step in parts: those who ask for bits of their own are computed after the others.

Kernels follow the number of rows, so rows whose bits may depend on nothing else are computed by
plans of their own, with nobody beside them who is not alike. The others have what they always have.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from zse.backends.types import StepBatch
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.backends.operations import PendingStep
    from zse.backends.types import Answers, SampledToken, SequenceChunk, TokenMasks
    from zse.kernels.lm_head_sample.row import SamplingRow

MOST_UNREAD = 3
"""Parts of a step whose tokens wait on the host to be read."""


@record
class Part:
    """Some chunks of a step, or pieces of them."""

    batch: StepBatch
    numbers: Sequence[int]
    """Which chunk of the whole step each of its chunks is, or is a piece of."""
    is_alone: bool

    @property
    def is_read(self) -> bool:
        """Whether the host gets tokens or states of it."""
        leaves = any(chunk.states_to is not None for chunk in self.batch.chunks)
        return leaves or any(self.batch.sampling)


def has_single(batch: StepBatch) -> bool:
    """Whether someone asks for bits of its own."""
    return any(chunk.is_alone for chunk in batch.chunks)


def parts_of(batch: StepBatch, most_rows: int) -> list[Part]:
    """Return the parts of a step in the order in which they are computed.

    Args:
        most_rows: Tokens of a part whose rows are each computed by itself.
    """
    chunks, sampling = batch.chunks, batch.sampling
    groups: list[tuple[bool, list[_Piece]]] = []
    others = [i for i, chunk in enumerate(chunks) if not chunk.is_alone]
    if others:
        groups.append((False, [_Piece(i, chunks[i], sampling[i]) for i in others]))
    single = [i for i, chunk in enumerate(chunks) if chunk.is_alone]
    # Prompts come last: what has none is repeated from a graph.
    for is_prompt in (False, True):
        own = [i for i in single if (chunks[i].kind in ("prefill", "alone")) == is_prompt]
        pieces = [p for i in own for p in _pieces(i, chunks[i], sampling[i], most_rows)]
        groups += [(True, group) for group in _grouped(pieces, most_rows)]
    masks = None if batch.masks is None else _WholeMasks(batch.masks, sampling)
    return [_part(pieces, masks, is_alone=is_alone) for is_alone, pieces in groups]


class _Piece(NamedTuple):
    number: int
    chunk: SequenceChunk
    rows: Sequence[SamplingRow]


def _part(pieces: list[_Piece], masks: _WholeMasks | None, *, is_alone: bool) -> Part:
    is_masked = any(row.is_masked for piece in pieces for row in piece.rows)
    own = masks.of([p.number for p in pieces]) if masks is not None and is_masked else None
    batch = StepBatch(
        chunks=[piece.chunk for piece in pieces],
        sampling=[piece.rows for piece in pieces],
        masks=own,
    )
    return Part(batch=batch, numbers=[piece.number for piece in pieces], is_alone=is_alone)


def _pieces(
    number: int, chunk: SequenceChunk, rows: Sequence[SamplingRow], most_rows: int
) -> Iterator[_Piece]:
    """Cut a chunk; its rows are those of its last tokens."""
    count = len(chunk.token_ids)
    if count <= most_rows:
        yield _Piece(number, chunk, rows)
        return
    before = count - len(rows)
    for start in range(0, count, most_rows):
        end = min(count, start + most_rows)
        piece = chunk._replace(
            token_ids=chunk.token_ids[start:end],
            start_position=chunk.start_position + start,
            states_to=_rows_of(chunk.states_to, start, end, count),
            joined=_rows_of(chunk.joined, start, end, count),
        )
        yield _Piece(number, piece, rows[max(0, start - before) : max(0, end - before)])


def _rows_of(states: memoryview | None, start: int, end: int, count: int) -> memoryview | None:
    """Return some of ``count`` rows."""
    if states is None:
        return None
    row_bytes = states.nbytes // count
    return states[start * row_bytes : end * row_bytes]


def _grouped(pieces: Sequence[_Piece], most_rows: int) -> Iterator[list[_Piece]]:
    """Put pieces together as long as they fit, never two of a sequence."""
    group: list[_Piece] = []
    taken = 0
    for piece in pieces:
        rows = len(piece.chunk.token_ids)
        if group and (taken + rows > most_rows or group[-1].number == piece.number):
            yield group
            group, taken = [], 0
        group.append(piece)
        taken += rows
    if group:
        yield group


class _WholeMasks:
    """The masks of a step, which are written once, for parts of it."""

    def __init__(self, masks: TokenMasks, sampling: Sequence[Sequence[SamplingRow]]) -> None:
        self._masks = masks
        self._numbers: list[list[int]] = []
        self._count = 0
        for rows in sampling:
            count = sum([row.is_masked for row in rows])
            self._numbers.append(list(range(self._count, self._count + count)))
            self._count += count
        self._written: ctypes.Array[ctypes.c_char] | None = None

    def of(self, chunks: Sequence[int]) -> _PartMasks:
        return _PartMasks(self, [n for chunk in chunks for n in self._numbers[chunk]])

    def write_rows(self, numbers: Sequence[int], address: int, row_bytes: int) -> None:
        if self._written is None:
            self._written = (ctypes.c_char * (self._count * row_bytes))()
            self._masks.write(ctypes.addressof(self._written), row_bytes)
        start = ctypes.addressof(self._written)
        for place, number in enumerate(numbers):
            ctypes.memmove(address + place * row_bytes, start + number * row_bytes, row_bytes)


class _PartMasks:
    """See ``zse.backends.types.TokenMasks``."""

    def __init__(self, whole: _WholeMasks, numbers: Sequence[int]) -> None:
        self._whole, self._numbers = whole, numbers

    def write(self, address: int, row_bytes: int) -> None:
        self._whole.write_rows(self._numbers, address, row_bytes)


class PartedStep:
    """See ``zse.backends.operations.PendingStep``: parts that are launched one after the other.

    Behind a part with masks the next one waits: what the masks are for lies where it computes.
    """

    def __init__(
        self, parts: Sequence[Part], num_chunks: int, launch: Callable[[Part], PendingStep]
    ) -> None:
        self._parts, self._launch = parts, launch
        self._pending: list[PendingStep] = []
        self._unread: list[int] = []
        self._answers: list[list[SampledToken]] = [[] for _ in range(num_chunks)]
        self._go_on()

    def _go_on(self) -> None:
        while len(self._pending) < len(self._parts):
            part = self._parts[len(self._pending)]
            if part.is_read:
                if len(self._unread) == MOST_UNREAD:
                    self._read()
                self._unread.append(len(self._pending))
            self._pending.append(self._launch(part))
            if part.batch.masks is not None:
                return

    def _read(self) -> None:
        """Wait for the first part that was not read."""
        number = self._unread.pop(0)
        found = self._pending[number].wait()
        for chunk, tokens in zip(self._parts[number].numbers, found, strict=True):
            self._answers[chunk] += tokens

    def sample(self) -> None:
        while True:
            self._pending[-1].sample()
            if len(self._pending) == len(self._parts):
                return
            self._go_on()

    def wait(self) -> Answers:
        self.sample()
        while self._unread:
            self._read()
        return self._answers
