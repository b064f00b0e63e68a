"""The device's KV blocks: free ones, cached prefixes and, as a second tier, those in host memory.

An allocation takes free blocks first, then evicts cached ones, the least recently used first. Where
there is a host tier, evicted blocks are copied there and come back with the next text that begins
with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kv.blocks import BlockAllocator
from zse.kv.prefix import RadixTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.kv.host_tier import HostTier
    from zse.kv.prefix import Namespace

_LEAVING_AT_ONCE = 16
"""Least number of blocks evicted to the host at a time: a copy of several costs less each."""


class BlockPool:
    """Allocates blocks, and evicts cached prefixes for them.

    Args:
        num_blocks: Blocks on the device.
        block_size: Tokens a block.
        tier: Takes evicted blocks; None drops them.
        on_removal: Called with each block that is cached no more.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int,
        tier: HostTier | None,
        on_removal: Callable[[int], None],
    ) -> None:
        self._block_size = block_size
        self._allocator = BlockAllocator(num_blocks)
        self.tree = RadixTree(self._allocator, block_size=block_size, on_removal=on_removal)
        self._tier = tier

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free ones and evictable ones."""
        return self._allocator.num_free + self.tree.num_evictable

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses and that hold nothing."""
        return self._allocator.num_free

    def free_blocks(self) -> list[int]:
        """Return the blocks whose content is of no use, ascending."""
        return self._allocator.free_blocks()

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Return so many blocks of the caller's own; None (and no change) where there are fewer."""
        missing = num_blocks - self._allocator.num_free
        if missing > self.tree.num_evictable:
            return None
        if missing > 0:
            self._evict(missing)
        return self._allocator.allocate(num_blocks)

    def in_host(
        self, token_ids: Sequence[int], reused: Sequence[int], *, namespace: Namespace
    ) -> list[tuple[bytes, Namespace]]:
        """Return the blocks of a text that follow its cached ones in host memory, and pin them.

        Each as its digest and its namespace; ``let_go`` unpins them.
        """
        if self._tier is None:
            return []
        found = self.tree.behind(token_ids, reused, namespace=namespace, is_there=self._tier.has)
        self._tier.hold([digest for digest, _ in found])
        return found

    def bring(
        self,
        token_ids: Sequence[int],
        reused: Sequence[int],
        fresh: Sequence[int],
        found: Sequence[tuple[bytes, Namespace]],
    ) -> int:
        """Copy pinned blocks from the host into a new table's, and cache them; return how many."""
        if self._tier is None or not found:
            return 0
        self._tier.bring([digest for digest, _ in found], fresh[: len(found)])
        self.let_go(found)
        self._tier.hit_tokens += len(found) * self._block_size
        size, start, last = self._block_size, len(reused), reused[-1] if reused else None
        for block, (_, owner) in zip(fresh, found, strict=False):
            tokens = token_ids[start * size : (start + 1) * size]
            (last,) = self.tree.insert(tokens, [block], namespace=owner, after=last)
            start += 1
        return len(found)

    def let_go(self, found: Sequence[tuple[bytes, Namespace]]) -> None:
        """Unpin what ``in_host`` returned."""
        if self._tier is not None:
            self._tier.let_go([digest for digest, _ in found])

    def flush(self) -> int:
        """Forget every prefix that no sequence uses and return the blocks freed."""
        if self._tier is not None:
            self._tier.clear()
        return self.tree.evict(self.tree.num_evictable)

    def check_consistency(self, owners: Sequence[Sequence[int]]) -> None:
        """Prove that ``owners`` and the prefix tree own every used block, and nobody else.

        Raises:
            EngineError: A reference count or the free list disagrees.
        """
        self._allocator.check_consistency([*owners, self.tree.blocks()])

    def _evict(self, num_blocks: int) -> None:
        """Evict blocks, into the host tier where there is one."""
        if self._tier is None:
            self.tree.evict(num_blocks)
            return
        digests: list[bytes] = []
        blocks: list[int] = []

        def leave(digest: bytes, block: int) -> None:
            digests.append(digest)
            blocks.append(block)

        self.tree.evict(max(num_blocks, _LEAVING_AT_ONCE), leave)
        self._tier.keep(digests, blocks)
