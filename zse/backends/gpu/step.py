"""One forward pass, laid out for the device: the order of its rows, and how many of everything.

Single rows come first, of tokens that are decoded and of drafts that are checked: attention treats
each as one query against its whole sequence. Rows of prompts follow, cut into tiles of queries;
where bits may depend on nothing else in a step, they are single rows, too. A step that is to be
repeated from a captured graph is padded to its bucket: padding rows read token 0 of a block of
their own and sample into a slot of their own.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kinds import count_adapter_tiles
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.types import PENDING_TOKEN, check_batch
from zse.errors import EngineError
from zse.kernels.attention.context import aligned_blocks
from zse.kernels.lm_head_sample.arrays import SamplingKind
from zse.kernels.lm_head_sample.entries import adjustment_entries
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.gpu.draft_states import StateRows
    from zse.backends.types import SequenceChunk, StepBatch, StepKind
    from zse.kernels.lm_head_sample.entries import AdjustmentEntries
    from zse.kv.windows import WindowGroup

LINES_ROWS = 256
"""Rows of prompts from which on their sequences are copied to lines: each is read that often."""


@record
class StepLimits:
    """What a chunk may ask for."""

    vocab_size: int
    num_blocks: int
    windows: Sequence[WindowGroup] = ()
    """Groups of layers that keep only a window."""
    max_slots: int
    tile_queries: int
    """Queries in a tile of prefill attention."""
    table_stride: int
    """Blocks of the longest sequence."""
    max_sampled: int
    """Rows that a step can sample."""
    all_single: bool = False
    """Whether tokens of prompts, too, are computed each on its own."""
    has_draft_states: bool = False
    """Whether drafts leave states, each in a slot of its own."""
    context_queries: int = 0
    """Queries in a tile of attention over lines."""
    most_context_blocks: int = 0
    """Blocks of sequences that are copied to lines for a step's prompts at most; 0: none are."""


@record
class StepPlan:
    """A batch in the order of its rows."""

    batch: StepBatch
    kind: StepKind
    """``decode`` where each chunk is one token that gets a successor, ``verify`` where some are
    drafts instead: what graphs are captured for; else ``prefill``."""
    single: Sequence[int]
    """Chunks whose tokens are computed each on its own, by number."""
    single_rows: int
    """Tokens of these."""
    prefill: Sequence[int]
    """The other chunks."""
    sampled: Sequence[int]
    """Chunk of each row that is sampled, in the order of rows."""
    sampling: Sequence[SamplingRow]
    """How each of these is sampled."""
    sampling_kind: SamplingKind
    entries: AdjustmentEntries
    mask_rows: Sequence[int]
    """Number of the mask of each sampled row, in the order of the batch; -1 for none. Empty where
    no row is masked."""
    wants_logits: bool
    """Whether the rows for the head are those of chunks that want logits, not the sampled ones."""
    wants_hidden: bool
    """Whether some row reports the state that its token is chosen from."""
    adapter_tiles: int
    """Tiles of rows that have one adapter each; 0 where no row has one."""
    states: StateRows | None = None
    """Where states lie, of a model that checks drafts with them; None: in the sequences' slots."""

    def chunks_in_order(self) -> Iterator[SequenceChunk]:
        """Yield the chunks in the order of their rows; what fills a step up is elsewhere."""
        for index in (*self.single, *self.prefill):
            yield self.batch.chunks[index]

    @property
    def num_rows(self) -> int:
        """Tokens of all chunks, without what fills a captured step up."""
        return sum([len(chunk.token_ids) for chunk in self.batch.chunks])


def plan_step(batch: StepBatch, limits: StepLimits) -> StepPlan:
    """Check a batch and put its chunks in order.

    Raises:
        EngineError: A chunk is empty, holds an unknown token, or its blocks do not cover it; or
            more tokens are asked for than a step can sample.
    """
    check_batch(
        batch,
        block_size=BLOCK_SIZE,
        num_blocks=limits.num_blocks,
        vocab_size=limits.vocab_size,
        looks_ahead=True,
        windows=limits.windows,
    )
    chunks, sampling = batch.chunks, batch.sampling
    for chunk in chunks:
        _check_chunk(chunk, limits)
    together = () if limits.all_single else ("prefill",)
    single = [i for i, chunk in enumerate(chunks) if chunk.kind not in together]
    prefill = [i for i, chunk in enumerate(chunks) if chunk.kind in together]
    order = single + prefill
    sampled = [i for i in order for _ in sampling[i]]
    if len(sampled) > limits.max_sampled:
        raise EngineError(
            f"{len(sampled)} tokens are asked for; a step samples {limits.max_sampled}"
        )
    rows = [row for i in order for row in sampling[i]]
    return StepPlan(
        batch=batch,
        kind=_kind_of(batch),
        single=single,
        single_rows=sum([len(chunks[i].token_ids) for i in single]),
        prefill=prefill,
        sampled=sampled,
        sampling=rows,
        sampling_kind=_sampling_kind(rows, limits),
        entries=adjustment_entries(rows, _pending_rows(chunks, sampled)),
        mask_rows=() if batch.masks is None else _mask_rows(sampling, order),
        wants_logits=any(chunk.wants_logits for chunk in chunks),
        wants_hidden=any(row.wants_hidden for row in rows),
        adapter_tiles=count_adapter_tiles(chunks, len(prefill)),
    )


def without_choice(plan: StepPlan) -> StepPlan:
    """Return a step whose tokens are chosen elsewhere: nothing of how is sent to the device.

    Rows are as many, and are rounded alike, as where tokens are chosen.
    """
    return replace(
        plan,
        batch=replace(plan.batch, masks=None),
        sampling=[SamplingRow(temperature=0.0)] * len(plan.sampling),
        sampling_kind=SamplingKind(),
        entries=adjustment_entries([], set()),
        mask_rows=(),
    )


def shape_of(
    plan: StepPlan,
    limits: StepLimits,
    *,
    bucket: int = 0,
    entry_room: int = 0,
    adapter_room: int = 0,
) -> InputShape:
    """Return the shape of a step's inputs.

    ``bucket`` are single rows to pad to, 0 pads nothing; ``entry_room`` is room for adjusted
    logits, if the step has any, and 0 takes what it needs; so does ``adapter_room``, in tiles.
    """
    entry_room = entry_room or len(plan.entries.rows)
    chunks = plan.batch.chunks
    lengths = [len(chunks[i].token_ids) for i in plan.prefill]
    context_blocks = _context_blocks(plan, limits) if sum(lengths) >= LINES_ROWS else 0
    return InputShape(
        decode_rows=bucket or plan.single_rows,
        rows_follow=plan.single_rows > len(plan.single),
        state_rows=0 if plan.states is None else bucket or plan.single_rows,
        prefill_rows=sum(lengths),
        tiles=_count_tiles(lengths, limits.tile_queries),
        context_blocks=context_blocks,
        context_tiles=_count_tiles(lengths, limits.context_queries) if context_blocks else 0,
        typed_rows=sum(lengths) if any(chunks[i].second_from for i in plan.prefill) else 0,
        runs=len(lengths),
        longest_run=max(lengths, default=0),
        sequences=bucket or plan.single_rows + len(lengths),
        table_stride=limits.table_stride,
        windows=len(limits.windows),
        wanted=bucket or len(wanted_rows(plan, plan.single_rows)),
        entries=entry_room if plan.sampling_kind.adjusted else 0,
        adapter_tiles=adapter_room or plan.adapter_tiles,
    )


def _count_tiles(lengths: Sequence[int], queries: int) -> int:
    return sum(-(-length // queries) for length in lengths)


def _context_blocks(plan: StepPlan, limits: StepLimits) -> int:
    """Return the blocks of the prompts' sequences as lines; 0 where there are too many."""
    chunks = (plan.batch.chunks[i] for i in plan.prefill)
    ends = (chunk.start_position + len(chunk.token_ids) for chunk in chunks)
    blocks = sum(map(aligned_blocks, ends)) if limits.most_context_blocks else 0
    return blocks if blocks <= limits.most_context_blocks else 0


def wanted_rows(plan: StepPlan, decode_rows: int) -> list[int]:
    """Return the rows that go through the head, ascending.

    ``decode_rows`` stand before those of ``plan.prefill``, padding included.
    """
    batch, wants_logits = plan.batch, plan.wants_logits
    rows: list[int] = []
    for order, first in ((plan.single, 0), (plan.prefill, decode_rows)):
        end = first
        for i in order:
            chunk = batch.chunks[i]
            count = len(chunk.token_ids)
            end += count
            wanted = count * chunk.wants_logits if wants_logits else len(batch.sampling[i])
            rows.extend(range(end - wanted, end))
    return rows


def _pending_rows(chunks: Sequence[SequenceChunk], sampled: Sequence[int]) -> set[int]:
    """Return the sampled rows whose newest token only the device knows."""
    return {row for row, i in enumerate(sampled) if chunks[i].token_ids[0] == PENDING_TOKEN}


def _mask_rows(sampling: Sequence[Sequence[SamplingRow]], order: list[int]) -> list[int]:
    """Return the number of each row's mask for chunks in some order; masks keep the batch's."""
    numbers = itertools.count()
    found = [[next(numbers) if row.is_masked else -1 for row in rows] for rows in sampling]
    return [number for chunk in order for number in found[chunk]]


def _sampling_kind(rows: Sequence[SamplingRow], limits: StepLimits) -> SamplingKind:
    """Return which kernels choose; drawn tokens are drawn in one way where all rows are single."""
    kind = SamplingKind.of(rows, limits.vocab_size)
    return replace(kind, truncated=kind.random) if limits.all_single else kind


def _kind_of(batch: StepBatch) -> StepKind:
    kinds = {chunk.kind for chunk in batch.chunks}
    if not kinds.isdisjoint(("prefill", "alone")) or not all(batch.sampling):
        return "prefill"
    return "verify" if "verify" in kinds else "decode"


def _check_chunk(chunk: SequenceChunk, limits: StepLimits) -> None:
    if len(chunk.block_table) > limits.table_stride:
        raise EngineError(
            f"a sequence has {len(chunk.block_table)} blocks; at most {limits.table_stride} fit"
        )
    if not 0 <= chunk.sequence_slot < limits.max_slots:
        raise EngineError(f"slot {chunk.sequence_slot} is outside 0 to {limits.max_slots - 1}")
