"""Which blocks of keys a block of queries sees, and how much of each: plain numbers, no tensors."""

from __future__ import annotations

from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.sparse.pattern import SparsePattern

_SPREAD = 0x9E3779B97F4A7C15
"""Keeps the draws of neighbouring blocks and seeds apart (the golden ratio in 64 bits)."""


class Seen(IntEnum):
    """Which pairs of a block of queries and a block of keys are seen."""

    ALL = 0
    """All of them."""
    ORDERED = 1
    """Those that lie in the text and, where attention is causal, not behind their query."""
    RULED = 2
    """Of those, the ones within the window and of global tokens."""


@record
class Blocks:
    """The blocks of a text of ``length`` tokens.

    Args:
        length: Tokens of the text; the last block may have fewer than the others.
        is_causal: Whether no token sees a later one.
    """

    pattern: SparsePattern
    length: int
    is_causal: bool

    @property
    def count(self) -> int:
        return -(-self.length // self.pattern.block_size)

    def rows(self) -> Iterator[dict[int, Seen]]:
        """Return for each block of queries, in order, the blocks of keys that it sees."""
        for row in range(self.count):
            yield self._row(row)

    def _row(self, row: int) -> dict[int, Seen]:
        found = {column: self._seen_by_rule(row, column) for column in self._ruled(row)}
        for column in (*self._strided(row), *self._drawn(row, found)):
            found[column] = self._seen_whole(row, column)
        return dict(sorted(found.items()))

    def _ruled(self, row: int) -> Iterator[int]:
        """Return the blocks with a token that is global or within the window of one of ours."""
        pattern, size = self.pattern, self.pattern.block_size
        last_column = row if self.is_causal else self.count - 1
        if not self.is_causal and row * size < pattern.num_global_start:
            yield from range(self.count)
            return
        num_global = min(-(-pattern.num_global_start // size), last_column + 1)
        yield from range(num_global)
        if not pattern.window_size:
            return
        reach = pattern.window_size - 1
        first = max((row * size - reach) // size, num_global)
        last = min((row * size + size - 1 + reach) // size, last_column)
        yield from range(first, last + 1)

    def _strided(self, row: int) -> Iterator[int]:
        stride = self.pattern.block_stride
        if stride:
            yield from range(row % stride, row + 1 if self.is_causal else self.count, stride)

    def _drawn(self, row: int, taken: dict[int, Seen]) -> list[int]:
        """Draw blocks among those that are not taken: always the same ones for a block.

        Of a causal text they depend on nothing behind it, so that it may grow.
        """
        end = row + 1 if self.is_causal else self.count
        free = [column for column in range(end) if column not in taken]
        draw = Random((self.pattern.seed * _SPREAD + row) % 2**64).random
        count = min(self.pattern.num_random_blocks, len(free))
        return [free.pop(int(draw() * len(free))) for _ in range(count)]

    def _seen_whole(self, row: int, column: int) -> Seen:
        is_inside = (column + 1) * self.pattern.block_size <= self.length
        return Seen.ALL if is_inside and (column < row or not self.is_causal) else Seen.ORDERED

    def _seen_by_rule(self, row: int, column: int) -> Seen:
        """Tell whether the rules for tokens leave out any pair of two blocks."""
        pattern, size = self.pattern, self.pattern.block_size
        farthest = (abs(row - column) + 1) * size - 1
        are_global = (column + 1) * size <= pattern.num_global_start or (
            not self.is_causal and (row + 1) * size <= pattern.num_global_start
        )
        if farthest < pattern.window_size or are_global:
            return self._seen_whole(row, column)
        return Seen.RULED
