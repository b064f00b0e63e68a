"""The blocks of layers that see only a window: those of a sequence's last tokens.

    tokens            | t0 .. t3 | t4 .. t7 | t8 .. t11 | t12 t13   |     block_size 4
    all of them       | 12       | 5        | 9         | 2         |
    a window of 5     |          |          | 3         | 0         |     t14 sees t10 and later

Layers with the same window share a pool. Blocks that slide out of a sequence's window stay cached
for others that begin with the same tokens: each is linked to the block of the prefix tree with the
same tokens ("beside" it). When room is needed, blocks that a sequence passed on its way are evicted
first, and those at a sequence's end, or where a prefix has matched before, last. A prefix can be
continued where the blocks of the window before its end are there; nothing further back is read.

A pool is large enough for the windows of all sequences that run at once (``most_blocks``), or has
as many blocks as the main pool. Where memory does not suffice for that, a sequence reserves its
window when it is admitted (``fits``). So a pool never runs dry later, and no sequence is preempted
for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zse.errors import EngineError
from zse.kv.blocks import BlockAllocator
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_PREFIXES = 16
"""Prefixes whose windows have room of their own while everything runs: a handful are in use."""


@record
class WindowGroup:
    """Layers that see the same window."""

    window: int
    """Tokens that are seen, the query's own included."""
    num_blocks: int
    """Blocks of their pool, numbered from 0."""
    most_reserved: int | None = None
    """Most blocks that running sequences may reserve together; None: all windows fit anyway."""


@dataclass(kw_only=True)
class WindowTable:
    """The blocks of one sequence in one group, in token order. Only its pool changes it."""

    first: int = 0
    """Blocks of tokens that are not seen any more."""
    blocks: list[int] = field(default_factory=list)
    """Block i holds tokens [(first + i) * block_size, (first + i + 1) * block_size)."""
    num_found: int = 0
    """Blocks of tokens that were there when the table was made."""
    num_reserved: int = 0
    """Blocks that are reserved for the sequence."""

    @property
    def end(self) -> int:
        """Index behind its last block, counted from the start of the text."""
        return self.first + len(self.blocks)


def blocks_each(window: int, block_size: int) -> int:
    """Return the blocks of one sequence at most: a window may begin and end within blocks."""
    return -(-window // block_size) + 2


def most_blocks(
    window: int, *, block_size: int, num_sequences: int, step_tokens: int, keeps_prefixes: bool
) -> int:
    """Return how many blocks can be needed at once.

    Args:
        window: Tokens that are seen.
        block_size: Tokens a block.
        num_sequences: Sequences that run at once.
        step_tokens: Tokens, of all sequences, that are computed before windows move on.
        keeps_prefixes: Whether there is to be room for the ends of some prefixes besides.
    """
    each = blocks_each(window, block_size)
    kept = min(num_sequences, MOST_PREFIXES) if keeps_prefixes else 0
    return (num_sequences + kept) * each + -(-step_tokens // block_size)


class WindowPool:
    """The blocks of one group.

    Args:
        group: Its window and size.
        block_size: Tokens a block.
    """

    def __init__(self, group: WindowGroup, *, block_size: int) -> None:
        self._window = group.window
        self._most_reserved = group.most_reserved
        self._num_reserved = 0
        self._block_size = block_size
        self._allocator = BlockAllocator(group.num_blocks)
        self._beside: dict[int, int] = {}
        """By block of the prefix tree, the block of this pool with the same tokens."""
        self._kept: dict[int, int] = {}
        """The inverse of ``_beside``."""
        self._passed: dict[int, None] = {}
        """Kept blocks that no table uses, evicted first; the one unused for longest comes first."""
        self._ended: dict[int, None] = {}
        """Likewise, but evicted last: a sequence ended here, or a prefix has matched before."""

    def free_blocks(self) -> list[int]:
        """Return the blocks whose content is of no use, ascending."""
        return self._allocator.free_blocks()

    def longest(self, blocks: Sequence[int], parent: WindowTable | None) -> int:
        """Return after how many of a prefix's blocks a sequence can continue it.

        Args:
            blocks: The prefix's, in the main pool.
            parent: Table of the sequence that they were taken from; None where the tree has them.
        """
        longest = run = 0
        for index in range(len(blocks)):
            run = run + 1 if self._find(blocks, index, parent) is not None else 0
            if run >= index + 1 - self._first_seen(index + 1):
                longest = index + 1
        return longest

    def needed(self, num_blocks: int) -> int:
        """Return how many of a text's full blocks the token behind them sees."""
        return num_blocks - self._first_seen(num_blocks)

    def open_saved(self, end: int, num_blocks: int) -> WindowTable:
        """Make the table of a text of full blocks that is restored from a file or store.

        It gets the blocks that the token behind block ``end`` sees; none where that is 0.
        """
        first = self._first_seen(end) if end else num_blocks
        table = WindowTable(first=first, num_found=num_blocks)
        self.grow(table, end * self._block_size)
        return table

    def beside(self, blocks: Sequence[int]) -> list[int] | None:
        """Return the blocks kept for a prefix, from the first that the token behind it sees.

        None where one of them was evicted.
        """
        first = self._first_seen(len(blocks))
        found = [self._beside.get(block) for block in blocks[first:]]
        return None if None in found else [block for block in found if block is not None]

    def fits(self, num_tokens: int, leaving: Sequence[WindowTable] = ()) -> bool:
        """Whether a window for so many tokens can be reserved once ``leaving`` are closed."""
        if self._most_reserved is None:
            return True
        left = sum(table.num_reserved for table in leaving)
        return self._num_reserved - left + self._blocks_for(num_tokens) <= self._most_reserved

    def open_table(
        self, blocks: Sequence[int], parent: WindowTable | None, *, most_tokens: int
    ) -> WindowTable:
        """Make the table of a sequence that continues a prefix, as far as ``longest`` allowed.

        It reserves a window for ``most_tokens``, for which ``fits`` was true.
        """
        end = len(blocks)
        first = self._first_seen(end)
        found = [self._find(blocks, index, parent) for index in range(first, end)]
        table = WindowTable(first=first, num_found=end, num_reserved=self._blocks_for(most_tokens))
        self._num_reserved += table.num_reserved
        for block in found:
            assert block is not None
            self._acquire(block)
            table.blocks.append(block)
        return table

    def advance(self, table: WindowTable, num_computed: int) -> None:
        """Free the blocks that no token behind the last full block sees any more.

        Another sequence that shares the full blocks may continue from there.
        """
        first = self._first_seen(num_computed // self._block_size)
        if first <= table.first:
            return
        passed = table.blocks[: first - table.first]
        for index, block in enumerate(passed, start=table.first):
            self._release(block, self._ended if index < table.num_found else self._passed)
        del table.blocks[: len(passed)]
        table.first = first

    def grow(self, table: WindowTable, num_tokens: int) -> None:
        """Allocate blocks so that a table covers ``num_tokens`` tokens.

        Raises:
            EngineError: The pool is smaller than ``most_blocks`` said.
        """
        num_new = -(-num_tokens // self._block_size) - table.end
        if num_new <= 0:
            return
        for _ in range(num_new - self._allocator.num_free):
            oldest = next(iter(self._passed or self._ended), None)
            if oldest is None:
                break
            self.forget(self._kept[oldest])
        fresh = self._allocator.allocate(num_new)
        if fresh is None:
            raise EngineError(
                f"the pool of a window of {self._window} tokens has "
                f"{self._allocator.num_blocks} blocks, fewer than its sequences need"
            )
        table.blocks.extend(fresh)

    def keep(self, table: WindowTable, first: int, blocks: Sequence[int]) -> None:
        """Keep a sequence's blocks for reuse, linked to its blocks in the prefix tree.

        Where an equal one is kept already, the table changes over to it.

        Args:
            table: The sequence's.
            first: Index of the first of these blocks in the sequence.
            blocks: The tree's blocks from there on.
        """
        for place, beside in enumerate(blocks, start=first - table.first):
            if not 0 <= place < len(table.blocks):
                continue  # it slid out of the window before its tokens were known
            own, kept = table.blocks[place], self._beside.get(beside)
            if kept is None:
                self._allocator.share(own)
                self._beside[beside], self._kept[own] = own, beside
            elif kept != own:
                self._acquire(kept)
                table.blocks[place] = kept
                self._release(own, self._passed)

    def forget(self, beside: int) -> None:
        """Free the block kept for a block of the prefix tree, which is cached no more."""
        block = self._beside.pop(beside, None)
        if block is not None:
            del self._kept[block]
            self._passed.pop(block, None)
            self._ended.pop(block, None)
            self._allocator.release(block)

    def close_table(self, table: WindowTable) -> None:
        """Give a table's blocks back; kept ones stay for reuse until the room is needed."""
        for block in table.blocks:
            self._release(block, self._ended)
        self._num_reserved -= table.num_reserved
        table.blocks, table.num_reserved = [], 0

    def check_consistency(self, tables: Sequence[WindowTable], cached: set[int]) -> None:
        """Prove that tables and kept blocks own every used one, and nobody else.

        Args:
            tables: Those that own blocks.
            cached: Blocks of the prefix tree.

        Raises:
            EngineError: Something disagrees.
        """
        self._allocator.check_consistency([*(table.blocks for table in tables), self._kept])
        if self._num_reserved != sum(table.num_reserved for table in tables):
            raise EngineError(f"{self._num_reserved} blocks of a window are reserved for nobody")
        if {own: beside for beside, own in self._beside.items()} != self._kept:
            raise EngineError("blocks of a window do not stand beside those that they are kept for")
        if strange := set(self._beside) - cached:
            raise EngineError(f"blocks {sorted(strange)} have windows but are not cached")
        idle = {block for block in self._kept if self._allocator.references(block) == 1}
        if idle != {*self._passed, *self._ended} or self._passed.keys() & self._ended.keys():
            raise EngineError(f"blocks {sorted(idle)} of a window can be had, and are not all told")

    def _first_seen(self, num_blocks: int) -> int:
        """Return the first block that the token after so many full blocks sees."""
        return max(0, num_blocks * self._block_size + 1 - self._window) // self._block_size

    def _blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that a sequence of so many tokens counts on."""
        whole = -(-num_tokens // self._block_size)
        return min(whole, blocks_each(self._window, self._block_size))

    def _find(self, blocks: Sequence[int], index: int, parent: WindowTable | None) -> int | None:
        kept = self._beside.get(blocks[index])
        if kept is None and parent is not None and parent.first <= index < parent.end:
            return parent.blocks[index - parent.first]
        return kept

    def _acquire(self, block: int) -> None:
        self._allocator.share(block)
        self._passed.pop(block, None)
        self._ended.pop(block, None)

    def _release(self, block: int, idle: dict[int, None]) -> None:
        if self._allocator.release(block) == 1 and block in self._kept:
            idle[block] = None
