"""State checkpoints: which cached prefixes can be gone on from, where sequences have states.

Linear attention keeps a state of fixed size in place of keys and values, and a state of the middle
of a text cannot be had from one of its end. So some states are kept, each with the block that ends
its prefix; a prefix is reused as far as the longest of them, and the rest is computed again.

A checkpoint is a number below the size of the pool. It belongs to a block, goes back with it, and
makes room for others when it has been used least recently. One that a sequence is to start from is
held until the step that copies it has been submitted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LEAST_BLOCKS = 4
"""Blocks that a checkpoint must spare: a step is cut short for it."""


class Checkpoints:
    """A pool of states, each of the prefix that a block ends."""

    def __init__(self, num_checkpoints: int) -> None:
        self.num_checkpoints = num_checkpoints
        self._free = list(range(num_checkpoints - 1, -1, -1))
        self._of_block: dict[int, int] = {}
        """The least recently used first."""
        self._holds: Counter[int] = Counter()
        self._reserved: set[int] = set()

    def longest(self, blocks: Sequence[int]) -> tuple[int, int | None]:
        """Return how many of a prefix's blocks can be reused, and the checkpoint at their end."""
        for count in range(len(blocks), 0, -1):
            checkpoint = self._of_block.get(blocks[count - 1])
            if checkpoint is not None:
                return count, checkpoint
        return 0, None

    def hold(self, checkpoint: int) -> None:
        """Keep a checkpoint until ``let_go``, whatever becomes of its block."""
        self._holds[checkpoint] += 1
        block = next(b for b, other in self._of_block.items() if other == checkpoint)
        self._of_block[block] = self._of_block.pop(block)  # used last

    def let_go(self, checkpoint: int) -> None:
        self._holds[checkpoint] -= 1
        if not self._holds[checkpoint]:
            del self._holds[checkpoint]
            if checkpoint not in self._of_block.values():
                self._free.append(checkpoint)

    def reserve(self) -> int | None:
        """Take a checkpoint for the state at the end of a step; None where none can be had."""
        if not self._free:
            oldest = next((b for b, c in self._of_block.items() if c not in self._holds), None)
            if oldest is None:
                return None
            self.forget(oldest)
        checkpoint = self._free.pop()
        self._reserved.add(checkpoint)
        return checkpoint

    def attach(self, checkpoint: int, block: int | None) -> None:
        """Say which cached block ends the prefix of a reserved checkpoint; None gives it back."""
        self._reserved.remove(checkpoint)
        if block is None or block in self._of_block:
            self._free.append(checkpoint)
        else:
            self._of_block[block] = checkpoint

    def forget(self, block: int) -> None:
        """Give the checkpoint of a block back, if it has one: it is cached no more."""
        checkpoint = self._of_block.pop(block, None)
        if checkpoint is not None and checkpoint not in self._holds:
            self._free.append(checkpoint)

    def check_consistency(self, cached: Collection[int], held: Sequence[int]) -> None:
        """Prove that every checkpoint is free, of a cached block or held, and nothing else.

        Args:
            cached: Blocks of the prefix tree.
            held: Checkpoints that tables hold, each as often as it is held.

        Raises:
            EngineError: Something disagrees.
        """
        if Counter(held) != self._holds:
            raise EngineError(f"checkpoints are held {dict(self._holds)}, expected {list(held)}")
        if strange := set(self._of_block) - set(cached):
            raise EngineError(f"blocks {sorted(strange)} have checkpoints but are not cached")
        used = {*self._of_block.values(), *self._holds, *self._reserved}
        if sorted([*used, *self._free]) != list(range(self.num_checkpoints)):
            raise EngineError(f"checkpoints {sorted(used)} are used and {self._free} are free")
