"""Prefix blocks that left the device's pool and lie in host memory, until they are wanted again.

A block is found by a digest of all tokens up to its end and of whose they are, so what comes back
is what would have been computed there, and nobody's salt opens another's blocks. What came back
stays here as well: when the pool gives it up once more, nothing has to be copied. The least
recently used goes first; ends of texts are older than their beginnings.

    pool   [7][3][9]          evicted, 9 then 3       host  slot 0: digest of block 9
            a  b  c   ------------------------------>       slot 1: digest of block 3

It knows no bytes: ``HostBlocks`` copies, in the order of the calls and of the steps around them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.kv.prefix import Namespace

_DIGEST_BYTES = 20


class HostBlocks(Protocol):
    """Host memory for blocks of a pool. Slots are numbered from 0."""

    def open_slots(self) -> int:
        """Begin to make slots if nobody has, and return how many there are by now.

        It never waits: the number grows to ``most_slots`` from call to call.
        """

    @property
    def most_slots(self) -> int: ...

    def keep(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks of the pool into slots, behind every step that was submitted."""

    def bring(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots into blocks of the pool, before every step that is submitted later."""


class HostTier:
    """Which prefixes lie in which slots.

    Args:
        host: The memory.
    """

    def __init__(self, host: HostBlocks) -> None:
        self._host = host
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        """Of each digest, the least recently used first."""
        self._held: set[bytes] = set()
        self._num_opened = 0
        self._free: list[int] = []
        self.hit_tokens = 0
        """Tokens whose blocks came back."""
        self.kept_blocks = 0
        """Blocks that were copied to the host."""

    @property
    def num_blocks(self) -> int:
        """Blocks that it can hold in the end."""
        return self._host.most_slots

    @property
    def num_used(self) -> int:
        return len(self._slots)

    def has(self, digest: bytes) -> bool:
        return digest in self._slots

    def hold(self, digests: Sequence[bytes]) -> None:
        """Pin blocks until ``let_go``, and mark them as the most recently used."""
        self._held.update(digests)
        for digest in reversed(digests):  # so that ends are older than beginnings
            self._slots.move_to_end(digest)

    def let_go(self, digests: Iterable[bytes]) -> None:
        self._held.difference_update(digests)

    def bring(self, digests: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy what is here into blocks of the pool."""
        self._host.bring([self._slots[digest] for digest in digests], blocks)

    def keep(self, digests: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy blocks that were evicted from the pool, in the order of their eviction.

        Where there is no room for all, the last evicted, beginnings of texts, are kept.
        """
        wanted: list[tuple[int, bytes]] = []
        for digest, block in zip(digests, blocks, strict=True):
            if digest in self._slots:
                self._slots.move_to_end(digest)
            else:
                wanted.append((block, digest))
        slots = self._take(len(wanted))
        fresh = wanted[len(wanted) - len(slots) :]  # beginnings, where there is no room for all
        if not fresh:
            return
        # Neighbours in the pool become neighbours here, which are one copy.
        slot_of = dict(zip(sorted(block for block, _ in fresh), sorted(slots), strict=True))
        for block, digest in fresh:
            self._slots[digest] = slot_of[block]
        self.kept_blocks += len(fresh)
        self._host.keep(list(slot_of), list(slot_of.values()))

    def clear(self) -> None:
        """Forget everything."""
        self._free += self._slots.values()
        self._slots.clear()
        self._held.clear()

    def check_consistency(self) -> None:
        slots = [*self._slots.values(), *self._free]
        assert sorted(slots) == list(range(self._num_opened))
        assert self._held <= self._slots.keys()

    def _take(self, count: int) -> list[int]:
        """Return up to ``count`` slots, evicting the least recently used that are not pinned."""
        taken: list[int] = []
        while len(taken) < count:
            if self._free:
                taken.append(self._free.pop())
            elif self._num_opened < self._host.open_slots():
                taken.append(self._num_opened)
                self._num_opened += 1
            else:
                oldest = next((each for each in self._slots if each not in self._held), None)
                if oldest is None:
                    break
                taken.append(self._slots.pop(oldest))
        return taken


def digest_of_root(namespace: Namespace) -> bytes:
    """Return what the digests of a namespace begin with."""
    return hashlib.blake2b(repr(namespace).encode(), digest_size=_DIGEST_BYTES).digest()


def digest_behind(before: bytes, namespace: Namespace, tokens: Sequence[int]) -> bytes:
    """Return the digest of a block, given that of what comes before it."""
    found = hashlib.blake2b(before, digest_size=_DIGEST_BYTES, person=b"zse-prefix")
    found.update(repr(namespace).encode() + b"\0")
    found.update(array("q", tokens).tobytes())
    return found.digest()
