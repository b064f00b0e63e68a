"""The KV cache as sequences see it: block tables over the allocator and the prefix tree.

Only full blocks are shared, and a full block is never written again, so no copy-on-write is needed:
a sequence that continues a shared prefix writes into blocks of its own.

    tokens        | t0 .. t3 | t4 .. t7 | t8 t9      |     block_size 4
    block table   | 12       | 5        | 9          |
                    shared     shared     its own
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zse.kv.checkpoints import LEAST_BLOCKS, Checkpoints
from zse.kv.pool import BlockPool
from zse.kv.table import BlockTable
from zse.kv.windows import WindowPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.kv.host_tier import HostTier
    from zse.kv.prefix import CachedRun, Namespace
    from zse.kv.windows import WindowGroup, WindowTable


class KVCache:
    """Gives sequences their blocks, evicting cached prefixes when the pool runs dry.

    Args:
        block_size: Tokens a block.
        prefix_cache: Keep computed blocks for later requests with the same prefix.
        num_checkpoints: States that are kept beside them; None where sequences have no states.
        windows: Groups of layers that see only a window, each with a pool of its own.
        tier: Where blocks go that are evicted; of sequences without states and windows alone.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        prefix_cache: bool = True,
        num_checkpoints: int | None = None,
        windows: Sequence[WindowGroup] = (),
        tier: HostTier | None = None,
    ) -> None:
        self.block_size = block_size
        self.has_windows = bool(windows)
        """Whether ``cover`` and ``advance`` have anything to do."""
        # Without a state to go on from, blocks that are kept are of no use.
        self._keeps_prefixes = prefix_cache and num_checkpoints != 0
        self.tier = tier if self._keeps_prefixes else None
        self._num_checkpoints = num_checkpoints
        self.resize(num_blocks, windows)
        self.restored_hits: Counter[str] = Counter()
        """Tokens that sequences reused of what came from outside, by where it came from."""

    def resize(self, num_blocks: int, windows: Sequence[WindowGroup]) -> None:
        """Start again with empty pools of these sizes; no table may be open.

        Cached prefixes are forgotten, except those in host memory.
        """
        self.num_blocks = num_blocks
        self.checkpoints = (
            None if self._num_checkpoints is None else Checkpoints(self._num_checkpoints)
        )
        self._windows = [WindowPool(group, block_size=self.block_size) for group in windows]
        self._pool = BlockPool(
            num_blocks, block_size=self.block_size, tier=self.tier, on_removal=self._forget
        )
        self._tree = self._pool.tree
        self._origins: dict[int, str] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free ones and evictable ones."""
        return self._pool.num_available

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses and that hold nothing."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks kept for reuse that no sequence references."""
        return self._tree.num_evictable

    def free_blocks(self) -> list[list[int]]:
        """Return the blocks of each pool whose content is of no use, ascending; windows' last."""
        return [self._pool.free_blocks(), *(pool.free_blocks() for pool in self._windows)]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def open_table(
        self,
        token_ids: Sequence[int],
        *,
        namespace: Namespace = "",
        parent: BlockTable | None = None,
        num_parent_tokens: int = 0,
        num_reserved: int = 0,
        most_reused: int | None = None,
        most_tokens: int = 0,
    ) -> BlockTable | None:
        """Make the block table of a sequence, reusing what is cached.

        At least one token is left to compute, because the next token comes from its logits.

        Args:
            token_ids: Every token known of the sequence.
            namespace: Whose blocks it may share.
            parent: Table of a running sequence that begins with the same tokens.
            num_parent_tokens: Tokens at its start that are equal and computed.
            num_reserved: Blocks that must stay available afterwards.
            most_reused: Tokens that may be reused at most; None is any number.
            most_tokens: Tokens that it grows to; looked at where memory is short of windows.

        Returns:
            A table with room for all tokens, or None (and nothing taken) when there is no room.
        """
        most = len(token_ids) - 1 if most_reused is None else min(most_reused, len(token_ids) - 1)
        whole = token_ids[: most // self.block_size * self.block_size]
        reused, source = self._reusable(whole, namespace), None
        if parent is not None:
            num_shared = min(num_parent_tokens, len(whole)) // self.block_size
            if num_shared > len(reused):
                reused, source = parent.blocks[:num_shared], parent
        count, checkpoint = self._usable(reused, source)
        reused = reused[:count]
        for block in reused:
            self._tree.acquire(block)  # first, so that making room cannot evict them
        num_new = self.blocks_for(len(token_ids)) - len(reused)
        has_room = num_new + num_reserved <= self.num_available and self.fits(most_tokens)
        in_host = []
        if has_room and source is None:
            in_host = self._pool.in_host(whole, reused, namespace=namespace)
        fresh = self._pool.allocate(num_new) if has_room else None
        if fresh is None:
            self._pool.let_go(in_host)
            self._release(reused)
            return None
        num_reused = len(reused) + self._pool.bring(whole, reused, fresh, in_host)
        if self.checkpoints is not None and checkpoint is not None:
            self.checkpoints.hold(checkpoint)
        self._count_restored(reused)
        return BlockTable(
            namespace=namespace,
            blocks=[*reused, *fresh],
            num_reused_tokens=num_reused * self.block_size,
            restored_from=checkpoint,
            windows=tuple(
                pool.open_table(reused, own, most_tokens=most_tokens)
                for pool, own in self._beside(source)
            ),
        )

    def grow_table(self, table: BlockTable, *, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` tokens in all; False (and no change) when there is none."""
        num_new = self.blocks_for(num_tokens) - len(table.blocks)
        if num_new <= 0:
            return True
        fresh = self._pool.allocate(num_new)
        if fresh is None:
            return False
        table.blocks.extend(fresh)
        return True

    def fits(self, most_tokens: int, leaving: Sequence[BlockTable] = ()) -> bool:
        """Whether the pools of windows have room for a sequence of so many tokens at its end.

        Args:
            most_tokens: Its length at its end.
            leaving: Tables that would be closed first.
        """
        return all(
            pool.fits(most_tokens, [table.windows[number] for table in leaving])
            for number, pool in enumerate(self._windows)
        )

    def cover(self, table: BlockTable, *, start: int, end: int) -> None:
        """Allocate the window blocks of tokens [start, end), which the next step computes."""
        for pool, own in zip(self._windows, table.windows, strict=True):
            pool.advance(own, start)
            pool.grow(own, end)

    def advance(self, table: BlockTable, *, num_computed: int) -> None:
        """Free the window blocks that no token after ``num_computed`` sees.

        Steps run in order on the device, so their next owner writes them after they were read.
        """
        for pool, own in zip(self._windows, table.windows, strict=True):
            pool.advance(own, num_computed)

    def commit(
        self, table: BlockTable, token_ids: Sequence[int], *, num_computed: int
    ) -> list[int]:
        """Offer the blocks that have become full to other sequences.

        These are of the first ``num_computed`` tokens, whose KV has been written, or will have been
        before anything that is computed later reads it. Where an equal block is cached already, the
        table changes over to it and gives up its own.

        Returns:
            The blocks given up, for a table of the caller's to own.
        """
        start, stop = table.num_cached, num_computed // self.block_size
        if not self._keeps_prefixes or stop <= start:
            return []
        own = table.blocks[start:stop]
        held = self._tree.insert(
            token_ids[start * self.block_size : stop * self.block_size],
            own,
            namespace=table.namespace,
            after=table.blocks[start - 1] if start else None,
        )
        replaced: list[int] = []
        for index, (mine, cached) in enumerate(zip(own, held, strict=True), start=start):
            if mine != cached:
                self._tree.acquire(cached)
                table.blocks[index] = cached
                replaced.append(mine)
        for pool, windowed in zip(self._windows, table.windows, strict=True):
            pool.keep(windowed, start, held)
        table.num_cached = stop
        return replaced

    @property
    def can_save(self) -> bool:
        """Whether prefixes can leave and come back: states beside blocks cannot."""
        return self._keeps_prefixes and self.checkpoints is None

    def open_saved(
        self, token_ids: Sequence[int], *, namespace: Namespace, has_windows: bool
    ) -> BlockTable | None:
        """Make the table of a prefix that is restored from a file or store: its full blocks.

        The caller fills the blocks behind ``num_reused_tokens`` and all blocks of ``windows``,
        commits the table and closes it. Without ``has_windows`` there are none of these: the prefix
        is then only the beginning of longer ones, and no sequence can continue right behind it.

        Returns:
            The table, or None (and nothing taken) when there is no room.
        """
        reused = self._tree.match(token_ids, namespace=namespace)
        for block in reused:
            self._tree.acquire(block)
        fresh = self._pool.allocate(self.blocks_for(len(token_ids)) - len(reused))
        if fresh is None:
            self._release(reused)
            return None
        blocks = [*reused, *fresh]
        end = len(blocks) if has_windows else 0
        return BlockTable(
            namespace=namespace,
            blocks=blocks,
            num_reused_tokens=len(reused) * self.block_size,
            windows=tuple(pool.open_saved(end, len(blocks)) for pool in self._windows),
        )

    def windows_needed(self, num_tokens: int) -> list[int]:
        """Return how many of the last blocks of a prefix each window needs to continue it."""
        return [pool.needed(num_tokens // self.block_size) for pool in self._windows]

    def cached_runs(self) -> list[CachedRun]:
        """Return what is kept for reuse, as the prefix tree has it."""
        return self._tree.runs()

    def windows_beside(self, blocks: Sequence[int]) -> list[list[int]] | None:
        """Return each window's kept blocks of a prefix, as far back as the next token sees.

        None where one of them is gone, so that no sequence can continue the prefix there.
        """
        found = [pool.beside(blocks) for pool in self._windows]
        return None if any(each is None for each in found) else [each or [] for each in found]

    def touch(self, token_ids: Sequence[int], *, namespace: Namespace) -> None:
        """Mark a prefix as the most recently used."""
        self._tree.match(token_ids, namespace=namespace)

    def note_origin(self, blocks: Sequence[int], origin: str) -> None:
        """Remember where cached blocks were restored from, to count the hits of each source."""
        self._origins.update(dict.fromkeys(blocks, origin))

    def next_checkpoint(self, table: BlockTable, num_computed: int, num_tokens: int) -> int:
        """Return after how many tokens to save a sequence's state; 0 for not at all.

        That is at the end of its full blocks, unless few were computed since the last checkpoint.
        """
        if self.checkpoints is None or not self._keeps_prefixes:
            return 0
        end = (num_tokens - 1) // self.block_size * self.block_size
        spared = (end - table.num_reused_tokens) // self.block_size
        return end if end > num_computed and spared >= LEAST_BLOCKS else 0

    def keep_state(self, table: BlockTable, checkpoint: int, *, num_computed: int) -> None:
        """Attach a reserved checkpoint to the cached block that ends a table's first tokens."""
        assert self.checkpoints is not None
        last = num_computed // self.block_size
        is_cached = table.num_cached >= last
        self.checkpoints.attach(checkpoint, table.blocks[last - 1] if is_cached else None)

    def state_restored(self, table: BlockTable) -> None:
        """Note that the step which copies a table's checkpoint has been submitted."""
        if self.checkpoints is not None and table.restored_from is not None:
            self.checkpoints.let_go(table.restored_from)
            table.restored_from = None

    def close_table(self, table: BlockTable) -> None:
        """Give a table's blocks back; cached ones stay for reuse until evicted."""
        self.state_restored(table)
        self._release(table.blocks)
        for pool, own in zip(self._windows, table.windows, strict=False):
            pool.close_table(own)
        table.blocks = []
        table.windows = ()
        table.num_cached = 0

    def flush(self) -> int:
        """Forget every prefix that no sequence uses and return the blocks freed."""
        return self._pool.flush()

    def check_consistency(self, tables: Sequence[BlockTable]) -> None:
        """Prove that ``tables`` and the prefix tree own every used block, and nobody else.

        Raises:
            EngineError: A reference count or the free list disagrees.
        """
        owners = [table.blocks for table in tables]
        self._pool.check_consistency(owners)
        if self.checkpoints is not None:
            held = [table.restored_from for table in tables if table.restored_from is not None]
            self.checkpoints.check_consistency(set(self._tree.blocks()), held)
        for number, pool in enumerate(self._windows):
            own = [table.windows[number] for table in tables if table.windows]
            pool.check_consistency(own, set(self._tree.blocks()))

    def _reusable(self, token_ids: Sequence[int], namespace: Namespace) -> list[int]:
        return self._tree.match(token_ids, namespace=namespace) if self._keeps_prefixes else []

    def _release(self, blocks: Sequence[int]) -> None:
        """Give up blocks of a table, so that ends are given up before beginnings."""
        for block in reversed(blocks):
            self._tree.release(block)

    def _count_restored(self, reused: Sequence[int]) -> None:
        if self._origins:
            for block in reused:
                if block in self._origins:
                    self.restored_hits[self._origins[block]] += self.block_size

    def _usable(self, blocks: Sequence[int], parent: BlockTable | None) -> tuple[int, int | None]:
        """Return how many of a prefix's blocks can be gone on from, and the checkpoint there."""
        count, checkpoint = len(blocks), None
        while True:
            longest = count
            for pool, own in self._beside(parent):
                longest = min(longest, pool.longest(blocks[:longest], own))
            if self.checkpoints is not None:
                longest, checkpoint = self.checkpoints.longest(blocks[:longest])
            if longest == count:
                return count, checkpoint
            count = longest

    def _beside(self, table: BlockTable | None) -> Iterator[tuple[WindowPool, WindowTable | None]]:
        """Yield each pool of windows, with a table's own part of it."""
        for number, pool in enumerate(self._windows):
            yield pool, table.windows[number] if table is not None else None

    def _forget(self, block: int) -> None:
        """Keep nothing longer that stands beside a block which is cached no more."""
        self._origins.pop(block, None)
        if self.checkpoints is not None:
            self.checkpoints.forget(block)
        for pool in self._windows:
            pool.forget(block)
