"""Who has which beginning of a prompt: a table of hashes, bounded, least recently used out first.

Replicas keep keys and values in blocks, and a prefix is reused in whole blocks. The router has no
tokenizer, so its blocks are bytes of the request instead of tokens: two prompts that begin alike
have the same first hashes. It remembers where it sent prompts, and asks nobody: a replica that has
let a prefix go computes it again, which costs time and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HOLDERS = 4
"""Replicas that are remembered for a block, the latest of them."""


class PrefixTable:
    """Hashes of beginnings, each with the replicas that were given it.

    Args:
        max_blocks: Hashes that are remembered.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def match(self, digests: Sequence[int]) -> dict[str, int]:
        """Return how many blocks, from the first on, each replica was given."""
        found: dict[str, int] = {}
        left: set[str] | None = None
        for number, digest in enumerate(digests, 1):
            holders = self._holders.get(digest)
            if holders is None:
                break
            left = set(holders) if left is None else left.intersection(holders)
            if not left:
                break
            for name in left:
                found[name] = number
        return found

    def note(self, digests: Sequence[int], name: str) -> None:
        """Remember that a replica has a prompt."""
        for digest in reversed(digests):  # the first block is to be the last that is forgotten
            holders = self._holders.pop(digest, ())
            others = tuple(each for each in holders if each != name)
            self._holders[digest] = (name, *others)[:MAX_HOLDERS]
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)
