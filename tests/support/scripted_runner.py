"""A runner whose answers are hashes of what it finds in its KV pool.

It writes each token into the block and slot that the block table names, and chooses the next token
from the whole history read back through the table. A block that is shared wrongly, freed too early
or overwritten changes the history, and with it the answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hash_model import hidden_of, logprob_of, next_token

from zse.backends.types import (
    MAX_DRAFTS,
    PENDING_TOKEN,
    SampledToken,
    StepBatch,
    accepted,
    check_batch,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zse.backends.types import SequenceChunk, TokenMasks
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.kv.windows import WindowGroup


@dataclass(frozen=True)
class Submitted:
    """What a device copied of a batch when it was submitted."""

    runner: ScriptedRunner
    chunks: list[SequenceChunk]
    slots: list[int]
    token_ids: list[list[int]]
    starts: list[int]
    tables: list[list[int]]
    windows: list[list[tuple[int, list[int]]]]
    """Of each chunk and each group of windows, the first block that is there, and all of them."""
    known: list[list[int]]
    """Prompt and output as the host knew them, drafts left out; empty where nothing is sampled."""
    rows: list[Sequence[SamplingRow]]
    masks: TokenMasks | None = None
    allowed: list[set[int]] = field(default_factory=list)
    """Of each masked row, once it is known."""
    answers: list[list[SampledToken]] = field(default_factory=list)

    @property
    def waits_for_masks(self) -> bool:
        return self.masks is not None and not self.allowed

    def sample(self) -> None:
        if self.waits_for_masks:
            self.runner.take_masks(self)

    def wait(self) -> list[list[SampledToken]]:
        return self.runner.answers_of(self)

    def written(self, index: int) -> set[int]:
        """Blocks that a chunk writes into."""
        first, size = self.starts[index], self.runner.block_size
        last = first + len(self.token_ids[index]) - 1
        return set(self.tables[index][first // size : last // size + 1])


class ScriptedRunner:
    """A model of hashes, as a device that computes at once or as late as it may.

    Args:
        steps_in_flight: Steps of different sequences that it has at once; then it looks not ahead.
        looks_ahead: Takes two steps at a time and pending tokens, and checks how they are used.
        is_late: Computes a step when it is waited for; else when it is submitted.
        most_accepted: Most tokens that it answers to a chunk of drafts, however many are right.
        num_checkpoints: States that it keeps; None where its sequences have none. A state is all
            tokens so far, and has the last word: the history is read from it.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_position: int = 256,
        vocab_size: int = 97,
        looks_ahead: bool = False,
        steps_in_flight: int = 1,
        is_late: bool = True,
        most_accepted: int = 99,
        num_checkpoints: int | None = None,
        most_drafts: int = MAX_DRAFTS,
        windows: Sequence[WindowGroup] = (),
    ) -> None:
        self.windows = windows
        self.window_cells = [
            [[-1] * block_size for _ in range(group.num_blocks)] for group in windows
        ]
        self.num_checkpoints = num_checkpoints
        self.most_drafts = most_drafts
        self.most_sequences: int | None = None
        self.is_encoder = False
        self.states: dict[int, list[int]] = {}
        """Of each slot, and of each checkpoint under its negative number less one."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_position = max_position
        self.vocab_size = vocab_size
        self.looks_ahead = looks_ahead and steps_in_flight == 1
        self.steps_in_flight = steps_in_flight
        self.is_late = is_late and self.looks_ahead
        self.most_accepted = most_accepted
        self.cells = [[-1] * block_size for _ in range(num_blocks)]
        self.last_tokens: dict[int, int] = {}
        self.batches: list[StepBatch] = []
        self.in_flight: list[Submitted] = []
        self.before: Submitted | None = None
        self.num_pending = 0
        self.error: Exception | None = None
        self.is_closed = False
        self.given_back: list[list[int]] = []

    def rest(self, free_blocks: list[list[int]]) -> None:
        assert not self.in_flight
        self.given_back = free_blocks

    def submit(self, batch: StepBatch) -> Submitted:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        step = self._copy_of(batch)
        assert len(set(step.slots)) == len(step.slots)
        most = max(int(self.looks_ahead), self.steps_in_flight - 1)
        assert len(self.in_flight) <= most, "too many steps in flight"
        assert not any(other.waits_for_masks for other in self.in_flight)
        for other in (step, *self.in_flight):
            self._check_owners(step, other)
        self._check_pending(step)
        self.in_flight.append(step)
        self.before = step
        if step.masks is not None and not self.looks_ahead:
            step.sample()
        elif step.masks is None and not self.is_late:
            self._compute(step)
        return step

    def take_masks(self, step: Submitted) -> None:
        """Have the masks of a step written; what is not late computes it now."""
        assert step.masks is not None
        assert step is self.in_flight[-1], "masks are known before the next step is submitted"
        count = sum(row.is_masked for rows in step.rows for row in rows)
        words = -(-self.vocab_size // 32)
        memory = (ctypes.c_uint32 * (count * words))()
        step.masks.write(ctypes.addressof(memory), 4 * words)
        for first in range(0, count * words, words):
            mask = memory[first : first + words]
            bits = {t for t in range(self.vocab_size) if mask[t // 32] >> t % 32 & 1}
            assert bits, "a mask allows nothing"
            step.allowed.append(bits)
        if not self.is_late:
            self._compute(step)

    def answers_of(self, step: Submitted) -> list[list[SampledToken]]:
        assert step is self.in_flight.pop(0), "steps are waited for in order, and once"
        if self.is_late:
            self._compute(step)
        return step.answers

    def _copy_of(self, batch: StepBatch) -> Submitted:
        known = []
        check_batch(
            batch,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            vocab_size=self.vocab_size,
            looks_ahead=self.looks_ahead,
            windows=self.windows,
        )
        for chunk, rows in zip(batch.chunks, batch.sampling, strict=True):
            assert (chunk.kind == "decode") == (len(chunk.token_ids) == 1)
            if chunk.kind == "verify":
                assert len(rows) == len(chunk.token_ids)
            told = [row for row in rows if row.known_token_id is not None]
            assert list(rows[: len(told)]) == told
            first = len(chunk.token_ids) - len(rows)
            for row, token in zip(told, chunk.token_ids[first + 1 :], strict=False):
                assert row.known_token_id == token
            chosen = rows[len(told) :]
            for row, draft in zip(chosen[1:], chunk.token_ids[1:], strict=False):
                assert not row.has_penalty or row.output_token_ids[-1] == draft
            texts = [[*row.prompt_token_ids, *row.output_token_ids] for row in chosen[:1]]
            known.append(texts[0] if texts else [])
        return Submitted(
            runner=self,
            slots=[chunk.sequence_slot for chunk in batch.chunks],
            token_ids=[list(chunk.token_ids) for chunk in batch.chunks],
            starts=[chunk.start_position for chunk in batch.chunks],
            tables=[list(chunk.block_table) for chunk in batch.chunks],
            windows=[
                [(own.first, list(own.blocks)) for own in chunk.windows] for chunk in batch.chunks
            ],
            known=known,
            chunks=list(batch.chunks),
            rows=list(batch.sampling),
            masks=batch.masks,
        )

    def _check_owners(self, step: Submitted, other: Submitted) -> None:
        """Nobody writes a block that somebody else's chunk uses in a step that is not done."""
        for mine, slot in enumerate(step.slots):
            for index, other_slot in enumerate(other.slots):
                if slot != other_slot:
                    assert not step.written(mine) & set(other.tables[index])

    def _check_pending(self, step: Submitted) -> None:
        """A pending token was sampled in the step just before, in the same blocks."""
        for index, token_ids in enumerate(step.token_ids):
            if PENDING_TOKEN not in token_ids:
                continue
            self.num_pending += 1
            assert self.looks_ahead
            assert self.in_flight == [self.before], "the token is known: its step is done"
            assert token_ids == [PENDING_TOKEN]
            before, (row,) = self.before, step.rows[index]
            assert before is not None
            assert row.step == len(step.known[index]) - len(row.prompt_token_ids) + 1
            place = before.slots.index(step.slots[index])
            chosen = [r for r in before.rows[place] if r.known_token_id is None]
            assert len(chosen) == 1
            assert step.starts[index] == before.starts[place] + len(before.token_ids[place])

    def _move_states(self, step: Submitted) -> None:
        """Take the states of a step's sequences on, as a device does: restored, moved, saved."""
        for chunk in step.chunks:
            if chunk.restored_from is not None:
                assert self.num_checkpoints is not None
                assert 0 <= chunk.restored_from < self.num_checkpoints
                self.states[chunk.sequence_slot] = list(self.states[-1 - chunk.restored_from])
        for chunk, slot, start, table in zip(
            step.chunks, step.slots, step.starts, step.tables, strict=True
        ):
            if start == 0:
                self.states[slot] = []
            state = self.states[slot]
            assert len(state) == start, "a state is of other tokens"
            end = start + (1 if chunk.kind == "verify" else len(chunk.token_ids))
            state += self._history(table, end)[start:]
            assert state == self._history(table, end), "a state is of other tokens"
        for chunk in step.chunks:
            if chunk.saved_to is not None:
                assert self.num_checkpoints is not None
                assert 0 <= chunk.saved_to < self.num_checkpoints
                self.states[-1 - chunk.saved_to] = list(self.states[chunk.sequence_slot])

    def _compute(self, step: Submitted) -> None:
        written: set[tuple[int, int]] = set()
        for index, token_ids in enumerate(step.token_ids):
            for offset, token in enumerate(token_ids):
                block, cell = self._cell(step.tables[index], step.starts[index] + offset)
                assert (block, cell) not in written, "two sequences write one cell"
                written.add((block, cell))
                known = self.last_tokens[step.slots[index]] if token == PENDING_TOKEN else token
                self.cells[block][cell] = known
            self._write_windows(step, index)
        for index in range(len(step.token_ids)):
            self._check_windows(step, index)
        assert not step.waits_for_masks
        if self.num_checkpoints is not None:
            self._move_states(step)
        masks = iter(step.allowed)
        for index, rows in enumerate(step.rows):
            end = step.starts[index] + len(step.token_ids[index])
            first = end + 1 - len(rows)
            if step.known[index] and len(rows) == 1:
                history, known = self._history(step.tables[index], first), step.known[index]
                assert history[: len(known)] == known
                assert len(history) - len(known) == step.token_ids[index].count(PENDING_TOKEN)
            sampled = [
                self._sample(
                    self._history(step.tables[index], first + place),
                    row,
                    next(masks) if row.is_masked else None,
                )
                for place, row in enumerate(rows)
            ]
            chunk = step.chunks[index]
            if chunk.kind == "verify":
                sampled = list(accepted(chunk, sampled))[: self.most_accepted]
                if self.num_checkpoints is not None:  # the state goes on behind drafts that stood
                    state = self.states[chunk.sequence_slot]
                    state += chunk.token_ids[1 : len(sampled)]
            elif sampled:
                self.last_tokens[step.slots[index]] = sampled[-1].token_id
            step.answers.append(sampled)

    def _write_windows(self, step: Submitted, index: int) -> None:
        """Write a chunk's tokens where each group of windows keeps them."""
        end = step.starts[index] + len(step.token_ids[index])
        for cells, (first, blocks) in zip(self.window_cells, step.windows[index], strict=True):
            for position in range(step.starts[index], end):
                block, cell = self._cell(step.tables[index], position)
                place = position // self.block_size - first
                cells[blocks[place]][cell] = self.cells[block][cell]

    def _check_windows(self, step: Submitted, index: int) -> None:
        """What a chunk's tokens see in a window is what was there before them, and they."""
        start, count = step.starts[index], len(step.token_ids[index])
        for group, cells, (first, blocks) in zip(
            self.windows, self.window_cells, step.windows[index], strict=True
        ):
            seen = max(0, start + 1 - group.window)
            found = [
                cells[blocks[at // self.block_size - first]][at % self.block_size]
                for at in range(seen, start + count)
            ]
            assert found == self._history(step.tables[index], start + count)[seen:]

    def _sample(
        self, history: Sequence[int], row: SamplingRow, allowed: Collection[int] | None
    ) -> SampledToken:
        token = row.known_token_id
        if token is None:
            token = next_token(history, row, self.vocab_size, allowed)
        logprob = None if row.logprobs is None else logprob_of([*history, token])
        hidden = hidden_of(history) if row.wants_hidden else None
        return SampledToken(token, logprob, [(token, -0.5)] * (row.logprobs or 0), hidden)

    def logits(self, token_ids: Sequence[int], adapter: object = None) -> list[list[float]]:
        return [[float(token)] * self.vocab_size for token in token_ids]

    def close(self) -> None:
        self.is_closed = True

    def _cell(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _history(self, table: Sequence[int], num_tokens: int) -> list[int]:
        cells = (self._cell(table, position) for position in range(num_tokens))
        return [self.cells[block][cell] for block, cell in cells]
