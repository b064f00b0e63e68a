"""Block allocator: who owns which KV block, by reference count.

It knows nothing of tokens or tensors: a block is a number. A block may be shared (a prompt prefix,
the prefix cache), so ownership is a count and not a flag; the price is one list of integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockAllocator:
    """Hands out the blocks of a fixed pool.

    Args:
        num_blocks: Blocks in the pool; they are numbered from 0.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise EngineError(
                f"the KV pool has {num_blocks} blocks, expected at least 1",
                hint="Give the cache more memory, or load a smaller model.",
            )
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        # A stack: the block that was freed last is the one most likely still in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_blocks(self) -> list[int]:
        """Return the numbers of all blocks that nobody owns, ascending."""
        return sorted(self._free)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take ``num_blocks`` free blocks, each with one reference.

        Returns:
            The block numbers, or None (and nothing taken) when fewer are free.
        """
        if num_blocks > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: int) -> int:
        """Add a reference to a block that has an owner and return the new count.

        Raises:
            EngineError: Nobody owns the block.
        """
        self._check_owned(block, "share")
        self._references[block] += 1
        return self._references[block]

    def release(self, block: int) -> int:
        """Drop one reference and return the count left; at 0 the block is free again.

        Raises:
            EngineError: Nobody owns the block.
        """
        self._check_owned(block, "release")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)
        return self._references[block]

    def references(self, block: int) -> int:
        """Return how many owners the block has; 0 when it is free."""
        return self._references[block]

    def check_consistency(self, owners: Iterable[Iterable[int]]) -> None:
        """Prove that the counts equal the owners given, and that free + used = total.

        Args:
            owners: For each owner the blocks it references, each block once.

        Raises:
            EngineError: A count, or the free list, disagrees.
        """
        expected = [0] * self.num_blocks
        for blocks in owners:
            for block in blocks:
                expected[block] += 1
        for block, (want, have) in enumerate(zip(expected, self._references, strict=True)):
            if want != have:
                raise EngineError(f"block {block} has {want} owners but counts {have}")
        free = set(self._free)
        unowned = {block for block, count in enumerate(self._references) if count == 0}
        if len(free) != len(self._free) or free != unowned:
            raise EngineError(
                f"the free list holds {sorted(self._free)}, expected {sorted(unowned)}"
            )

    def _check_owned(self, block: int, action: str) -> None:
        if not 0 <= block < len(self._references) or self._references[block] == 0:
            raise EngineError(f"cannot {action} block {block}: nobody owns it")
