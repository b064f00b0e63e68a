"""One forward pass, laid out for the operations: rows, positions, cache slots, masks.

Decode and verify chunks come first. They are computed so that no row's bits depend on another row:
a draft that is checked has the bits of a token that is decoded. The rows of prompts follow and are
computed together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.types import check_batch
from zse.errors import EngineError
from zse.format.as_torch import bytes_from
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zse.backends.torch.adapters import BoundAdapter
    from zse.backends.torch.delta import States
    from zse.backends.torch.kept import KeptRows
    from zse.backends.types import Answers, SequenceChunk, StepBatch
    from zse.kv.windows import WindowGroup
    from zse.models.rope import RoPESpec

QUERY_TILE = 256
"""Queries of one chunk that attend at a time: bounds the mask's size."""


@record
class ChunkRows:
    """Where consecutive queries of one sequence lie: a prompt's chunk, or one token alone."""

    first_row: int
    num_tokens: int
    start_position: int
    state_slot: int
    """Where its sequence's state is left, if it has any."""
    state_from: int
    """Which state it goes on with: another one where it is a draft."""
    blocks: Sequence[torch.Tensor]
    """int64 block ids up to the chunk's end, for each group of layers."""
    adapter: BoundAdapter | None = None


@record
class PagedMemory:
    """Keys and values in blocks, those of each group of layers in a pool of its own."""

    block_size: int
    num_blocks: int
    """Of the group that keeps whole sequences."""
    windows: Sequence[WindowGroup]
    """The other groups."""
    layers: dict[int, KeptRows]
    """Of each layer that stores any."""
    group_of: Mapping[int, int]
    """Group of each of these layers."""


class StepMemory(NamedTuple):
    """What steps leave for those after them."""

    blocks: PagedMemory
    states: States


@dataclass(kw_only=True)
class Step:
    """What the operations look up. Built by ``build_step``, used once."""

    token_ids: torch.Tensor
    """int64 [tokens]."""
    positions: torch.Tensor
    """int64 [tokens]."""
    slots: Sequence[torch.Tensor]
    """int64 [tokens]: block * block_size + offset, where each token's key and value go, for each
    group of layers."""
    single_rows: int
    """Rows before this one are computed each on its own."""
    chunks: list[ChunkRows]
    cache: PagedMemory
    states: States
    sampled_rows: list[int]
    """Rows whose tokens' successors are asked for, in the order of the batch."""
    wanted_rows: list[int]
    """Rows whose logits ``lm_head`` gives, in the order of the batch."""
    batch: StepBatch
    adapts: bool
    """Whether any of its sequences has an adapter."""
    first_rows: list[int]
    """Of each chunk of the batch."""
    lent: list[tuple[int, list[int]]]
    """Of chunks that check drafts, where the states behind their tokens are left."""
    rotary: dict[RoPESpec, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Cosines and sines of the positions, for each rotation that layers ask for."""
    masks: dict[tuple[int, int, int, int], torch.Tensor] = field(default_factory=dict)

    def keep(self, layer: int, rows: torch.Tensor) -> None:
        """Write what a layer keeps of the tokens, [tokens, kept rows, head_dim]."""
        self.cache.layers[layer].write(self.slots[self.cache.group_of[layer]], rows)

    def settle_states(self, answers: Answers = ()) -> None:
        """Let sequences go on with the states behind the drafts that stood, of no answers none."""
        for index, lent in self.lent:
            num_accepted = len(answers[index]) - 1 if answers else 0
            slot = self.batch.chunks[index].sequence_slot
            self.states.slots.settle(slot, lent, max(0, num_accepted))
        self.lent.clear()

    def given_states(self) -> torch.Tensor:
        """Return float32 [tokens, hidden]: the states that came with the tokens.

        Raises:
            EngineError: A chunk came without any.
        """
        parts: dict[int, torch.Tensor] = {}
        for first, chunk in zip(self.first_rows, self.batch.chunks, strict=True):
            if chunk.joined is None:
                raise EngineError("tokens came without the states that they are joined with")
            rows = torch.frombuffer(bytearray(chunk.joined), dtype=torch.float32)
            parts[first] = rows.view(len(chunk.token_ids), -1)
        return torch.cat([parts[first] for first in sorted(parts)])

    def hand_states_out(self, states: torch.Tensor) -> None:
        """Give chunks that want them the float32 [tokens, hidden] of their tokens."""
        for first, chunk in zip(self.first_rows, self.batch.chunks, strict=True):
            if chunk.states_to is not None:
                rows = states[first : first + len(chunk.token_ids)].contiguous()
                chunk.states_to[:] = bytes_from(rows)

    def types(self) -> torch.Tensor:
        """Return int64 [tokens]: 1 in the second text of a pair, else 0. All chunks are texts."""
        types = torch.zeros_like(self.token_ids)
        for rows, chunk in zip(self.chunks, self.batch.chunks, strict=True):
            if chunk.second_from is not None:
                types[rows.first_row + chunk.second_from : rows.first_row + rows.num_tokens] = 1
        return types


def build_step(
    batch: StepBatch, memory: StepMemory, vocab_size: int, *, all_single: bool = False
) -> Step:
    """Lay out a batch; with ``all_single`` tokens of prompts are computed each on its own, too.

    Raises:
        EngineError: A chunk is empty, holds an unknown token, or its blocks do not cover it.
    """
    cache = memory.blocks
    check_batch(
        batch,
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
        vocab_size=vocab_size,
        windows=cache.windows,
    )
    order = sorted(range(len(batch.chunks)), key=lambda i: batch.chunks[i].kind == "prefill")
    token_ids: list[int] = []
    chunks: list[ChunkRows] = []
    lent: list[tuple[int, list[int]]] = []
    first_rows = [0] * len(batch.chunks)
    slots: list[list[torch.Tensor]] = []
    positions: list[int] = []
    for index in order:
        chunk = batch.chunks[index]
        first_rows[index] = len(token_ids)
        end = chunk.start_position + len(chunk.token_ids)
        blocks = _blocks_of(chunk, -(-end // cache.block_size), len(cache.windows))
        states = [memory.states.slots.of(chunk.sequence_slot)]
        if chunk.kind == "verify":
            states = memory.states.slots.lend(chunk.sequence_slot, len(chunk.token_ids) - 1)
            lent.append((index, states))
        chunks.extend(_rows_of(chunk, len(token_ids), blocks, states, all_single=all_single))
        token_ids.extend(chunk.token_ids)
        own = torch.arange(chunk.start_position, end)
        positions.extend(range(chunk.start_position, end))
        places, offsets = own // cache.block_size, own % cache.block_size
        slots.append([table[places] * cache.block_size + offsets for table in blocks])
    return Step(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slots=[torch.cat(parts) for parts in zip(*slots, strict=True)],
        single_rows=sum(
            len(c.token_ids) for c in batch.chunks if all_single or c.kind != "prefill"
        ),
        chunks=chunks,
        cache=cache,
        states=memory.states,
        sampled_rows=_last_rows(batch.chunks, first_rows, map(len, batch.sampling)),
        wanted_rows=_last_rows(
            batch.chunks, first_rows, [c.wants_logits * len(c.token_ids) for c in batch.chunks]
        ),
        batch=batch,
        adapts=any(chunk.adapter is not None for chunk in batch.chunks),
        lent=lent,
        first_rows=first_rows,
    )


def window_mask(
    queries: tuple[int, int], keys: tuple[int, int], window: int | None
) -> torch.Tensor:
    """Return what to add to scores where a query sees tokens less than ``window`` away, or all.

    Returns:
        float32 [queries, keys], each from a position to an end: 0, or minus infinity.
    """
    if window is None:
        return torch.zeros(queries[1] - queries[0], keys[1] - keys[0])
    distances = torch.arange(*queries).unsqueeze(1) - torch.arange(*keys).unsqueeze(0)
    hidden = distances.abs() >= window
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def causal_mask(
    first_query: int, end_query: int, first_key: int, window: int | None
) -> torch.Tensor:
    """Return what to add to scores: 0 where a query sees a key, minus infinity elsewhere.

    Both queries and keys end before ``end_query``; a window counts the query's own key.

    Returns:
        float32 [end_query - first_query, end_query - first_key].
    """
    queries = torch.arange(first_query, end_query).unsqueeze(1)
    keys = torch.arange(first_key, end_query).unsqueeze(0)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def _blocks_of(chunk: SequenceChunk, end: int, num_windows: int) -> list[torch.Tensor]:
    """Return a sequence's blocks up to ``end`` for each group; what no one sees is block 0."""
    whole = torch.tensor(chunk.block_table[:end])
    windowed = [torch.tensor([*[0] * own.first, *own.blocks][:end]) for own in chunk.windows] or [
        whole
    ] * num_windows
    return [whole, *windowed]


def _rows_of(
    chunk: SequenceChunk,
    first_row: int,
    blocks: Sequence[torch.Tensor],
    states: Sequence[int],
    *,
    all_single: bool,
) -> list[ChunkRows]:
    """Return a prompt's chunk whole, and any other one token at a time.

    ``states`` are those of the chunk, of which drafts have one each.
    """
    count = len(chunk.token_ids)
    size = count if chunk.kind == "prefill" and not all_single else 1
    return [
        ChunkRows(
            first_row=first_row + offset,
            num_tokens=size,
            start_position=chunk.start_position + offset,
            state_slot=states[min(offset, len(states) - 1)],
            state_from=states[max(0, min(offset, len(states)) - 1)],
            blocks=blocks,
            adapter=chunk.adapter,
        )
        for offset in range(0, count, size)
    ]


def _last_rows(
    chunks: Sequence[SequenceChunk], first_rows: list[int], counts: Iterable[int]
) -> list[int]:
    """Return the last ``counts[i]`` rows of chunk i, for all of them."""
    rows: list[int] = []
    for chunk, first, count in zip(chunks, first_rows, counts, strict=True):
        end = first + len(chunk.token_ids)
        rows.extend(range(end - count, end))
    return rows
