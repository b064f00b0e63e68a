"""One forward pass, laid out for the kernels: tokens, positions, slots, rows that attend together.

Decode and verify chunks come first, each token alone: their bits depend on no other row, so a draft
that is checked has the bits of a token that is decoded. The rows of prompts follow.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from zse.backends.resident import ROWS_AT_ONCE
from zse.backends.types import check_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.cpu.cache import KVCache
    from zse.backends.cpu.states import StatePool
    from zse.backends.types import Answers, StepBatch

ROWS_WORDS = 3
"""Words of eight bytes in a ``struct zse_rows``: two numbers, two more, an address."""
_LOW_HALF = 0xFFFFFFFF


class Step:
    """A batch, row by row. Built once, used once.

    With ``all_single`` tokens of prompts are computed each on its own, too.

    Raises:
        EngineError: A chunk is empty, holds an unknown token, or its blocks do not cover it.
    """

    def __init__(
        self,
        batch: StepBatch,
        cache: KVCache,
        states: StatePool,
        vocab_size: int,
        *,
        all_single: bool = False,
    ) -> None:
        check_batch(
            batch,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            vocab_size=vocab_size,
            windows=cache.windows,
        )
        chunks = batch.chunks
        self.batch = batch
        self.cache = cache
        self.states = states
        last = () if all_single else ("prefill",)
        self.order = sorted(range(len(chunks)), key=lambda index: chunks[index].kind in last)
        """Indices of the chunks as their rows follow each other."""
        self.leaves_states = any(chunk.states_to is not None for chunk in chunks)
        """Whether the states of its tokens are wanted."""
        self.single_rows = 0
        """Rows before this one are computed each on its own."""
        self.adapters: array[int] | None = None
        """Addresses of the rows' adapters, 0 where a row has none; None where no row has one."""
        self._lent: list[tuple[int, list[int]]] = []
        """Of chunks that check drafts, where the states behind their tokens are left."""
        self._tables: list[array[int]] = []
        self.num_groups = 1 + len(cache.windows)
        """Groups of layers; slots and rows that attend are there for each, one after the other."""
        self._lay_out(all_single=all_single)

    def _lay_out(self, *, all_single: bool) -> None:
        """Make the arrays that kernels read, of all chunks one after the other."""
        size = self.cache.block_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        words: list[int] = []
        for index in self.order:
            slot, ids, start, table, kind, *_ = self.batch.chunks[index]
            count, first = len(ids), len(tokens)
            end = start + count
            blocks = array("i", table[: -(-end // size)])
            self._tables.append(blocks)
            address, _ = blocks.buffer_info()
            tokens += ids
            if count == 1:
                positions.append(start)
                slots.append(blocks[-1] * size + start % size)
            else:
                positions += range(start, end)
                slots += [blocks[at // size] * size + at % size for at in range(start, end)]
            at_once = count
            if all_single or kind != "prefill":
                self.single_rows += count
                at_once = 1
            state_words = self._states_of_rows(index, slot, count if kind == "verify" else 1)
            for offset in range(0, count, at_once):
                state_word = state_words[min(offset, len(state_words) - 1)]
                words += (
                    first + offset | at_once << 32,
                    start + offset | state_word << 32,
                    address,
                )
        num_words = len(words)
        for number in range(len(self.cache.windows)):
            self._add_window(number, slots, words, num_words)
        self.tokens = array("i", tokens)
        self.positions = array("i", positions)
        self._slots = self._some_slots = array("i", slots)
        self._attending = array("Q", words)

    def _add_window(self, number: int, slots: list[int], words: list[int], num_words: int) -> None:
        """Add the slots, and the rows that attend, of layers that see only a window.

        They are those of the first group, which are ``num_words``, but for their blocks.
        """
        size = self.cache.block_size
        own_tables: dict[int, int] = {}
        for place, index in enumerate(self.order):
            chunk, whole = self.batch.chunks[index], self._tables[place]
            blocks = whole
            if chunk.windows:
                own = chunk.windows[number]
                blocks = array("i", bytes(4 * own.first))  # of tokens that no one sees
                blocks.extend(own.blocks)
                self._tables.append(blocks)
            start, end = chunk.start_position, chunk.start_position + len(chunk.token_ids)
            slots += [blocks[at // size] * size + at % size for at in range(start, end)]
            own_tables[whole.buffer_info()[0]] = blocks.buffer_info()[0]
        for place in range(0, num_words, ROWS_WORDS):
            rows, starts, address = words[place : place + ROWS_WORDS]
            words += (rows, starts, own_tables[address])

    def _states_of_rows(self, index: int, slot: int, count: int) -> list[int]:
        """Return the states that a chunk's rows leave, and go on with, as the kernels read them.

        All rows of a chunk have its sequence's, but drafts each leave one of their own.
        """
        if count == 1:
            own = self.states.slots.of(slot)
            return [own | own << 16]
        lent = self.states.slots.lend(slot, count - 1)
        self._lent.append((index, lent))
        return [
            left | source << 16 for left, source in zip(lent, [lent[0], *lent[:-1]], strict=True)
        ]

    def settle_states(self, answers: Answers = ()) -> None:
        """Let sequences go on with the states behind the drafts that stood, of no answers none."""
        for index, lent in self._lent:
            num_accepted = len(answers[index]) - 1 if answers else 0
            slot = self.batch.chunks[index].sequence_slot
            self.states.slots.settle(slot, lent, max(0, num_accepted))
        self._lent.clear()

    def find_adapters(self) -> None:
        """Let rows have the adapters of their chunks, if any has one."""
        chunks = self.batch.chunks
        if any(chunk.adapter is not None for chunk in chunks):
            self.adapters = addresses = array("Q")
            for index in self.order:
                chunk = chunks[index]
                address = 0 if chunk.adapter is None else chunk.adapter.address
                addresses.extend([address] * len(chunk.token_ids))

    def adapters_from(self, first: int) -> int:
        """Return where the adapters of rows from ``first`` on begin; 0: no row has one."""
        return 0 if self.adapters is None else self.adapters.buffer_info()[0] + 8 * first

    def last_rows(self, counts: Sequence[int]) -> list[int]:
        """Return the last ``counts[i]`` rows of chunk i, for all of them, in the step's order."""
        rows: list[int] = []
        end = 0
        for index in self.order:
            end += len(self.batch.chunks[index].token_ids)
            rows.extend(range(end - counts[index], end))
        return rows

    def batch_order(self, counts: Sequence[int]) -> list[int]:
        """Return where each of those rows stands in that list, in the order of the batch."""
        firsts = [0] * len(counts)
        end = 0
        for index in self.order:
            firsts[index] = end
            end += counts[index]
        return [
            first + row for first, count in zip(firsts, counts, strict=True) for row in range(count)
        ]

    def addresses(self, first: int, end: int) -> tuple[int, int, int]:
        """Return where the tokens, positions and slots of rows ``first`` to ``end`` begin.

        Slots follow those of the group of layers before: of a part of the rows they are a copy.
        """
        offset, count = 4 * first, len(self.tokens)
        slots, slots_offset = self._slots, offset
        if self.num_groups > 1 and end - first < count:
            slots, slots_offset = array("i"), 0
            for group in range(self.num_groups):
                slots.extend(self._slots[group * count + first : group * count + end])
            self._some_slots = slots  # stays while they are computed
        return (
            self.tokens.buffer_info()[0] + offset,
            self.positions.buffer_info()[0] + offset,
            slots.buffer_info()[0] + slots_offset,
        )

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Return the first row and the end of each part that is computed at once."""
        count = len(self.tokens)
        for first in range(0, count, ROWS_AT_ONCE):
            yield first, min(first + ROWS_AT_ONCE, count)

    def attending(self, first: int, end: int) -> array[int]:
        """Return ``struct zse_rows`` of rows ``first`` to ``end``, for each group of layers."""
        if end - first == len(self.tokens):
            return self._attending
        words = array("Q")
        for place in range(0, len(self._attending), ROWS_WORDS):
            rows, start, blocks = self._attending[place : place + ROWS_WORDS]
            first_row, num_rows = rows & _LOW_HALF, rows >> 32
            begin = max(first_row, first)
            count = min(first_row + num_rows, end) - begin
            if count > 0:
                words.extend((begin - first | count << 32, start + begin - first_row, blocks))
        return words
