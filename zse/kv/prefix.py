"""Prefix reuse: a radix tree of computed KV blocks, least recently used leaves evicted first.

The alphabet of the tree is one full block of tokens, so an edge is a block and a match is whole
blocks: up to ``block_size - 1`` tokens of it are computed again, and in return no block is ever
split. A namespace (the request's cache salt, and its adapter) has its own root: its blocks are seen
by nobody else.

    root("")  -> [The cat sat on] block 7 -> [the mat and then] block 3 -> ...
                                          -> [a hat that was  ] block 9
    root("b") -> [The cat sat on] block 4        same text, another namespace, another block

What everybody may share, because it came with the model's file, stands under a root of its own
(``PUBLIC``). Whoever's text begins so goes on behind it, and what he adds is his alone:

    root(PUBLIC) -> [You are a help] block 2 -> ("b", [Dear Ann, my x]) block 6

The tree holds one reference on each of its blocks; a block whose only reference is the tree's, and
that has no children, can be evicted. Candidates stand in a heap that is kept as they arise, so
eviction never walks the tree.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.kv.host_tier import digest_behind, digest_of_root
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.kv.blocks import BlockAllocator

Namespace: TypeAlias = "str | tuple[int, str]"
"""A cache salt; with an adapter, its number and the salt: keys and values are its own."""
PUBLIC: Namespace = (-1, "")
"""Of what all may share whose keys and values no adapter changes; adapters are numbered from 0."""
_Key: TypeAlias = "tuple[int, ...] | tuple[Namespace, tuple[int, ...]]"
"""A block's tokens; behind a block of another namespace, with whose they are."""


@record
class CachedRun:
    """Blocks that follow each other in the tree, up to where texts part, or to the end of one."""

    namespace: Namespace
    parent: int | None
    """Which run of the list comes before it; None at the start of a text."""
    token_ids: tuple[int, ...]
    """Of its own blocks."""
    blocks: tuple[int, ...]
    last_used: int
    """A clock of the tree's own: larger is later."""


class _Node:
    """One cached block; ``block`` is -1 at a root."""

    __slots__ = (
        "block",
        "children",
        "digest",
        "is_queued",
        "key",
        "last_used",
        "namespace",
        "parent",
    )

    def __init__(self, key: _Key, block: int, parent: _Node | None, namespace: Namespace) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.namespace = namespace
        self.children: dict[_Key, _Node] = {}
        self.last_used = 0
        self.is_queued = False
        self.digest: bytes | None = None
        """Of everything up to here, once it was asked for (``_digest_of``)."""


class RadixTree:
    """Cached prefixes at block granularity.

    Args:
        allocator: The pool whose blocks the tree references.
        block_size: Tokens a block.
        on_removal: Called with every block that is cached no more.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        *,
        block_size: int,
        on_removal: Callable[[int], None] | None = None,
    ) -> None:
        self._on_removal = on_removal
        self._allocator = allocator
        self._block_size = block_size
        self._roots: dict[Namespace, _Node] = {}
        self._nodes: dict[int, _Node] = {}
        self._candidates: list[tuple[int, int, _Node]] = []
        self._clock = 0
        self.num_evictable = 0
        """Blocks that only the tree references; all of them can be evicted, leaves first."""

    def blocks(self) -> Iterator[int]:
        return iter(self._nodes)

    def match(self, token_ids: Sequence[int], *, namespace: Namespace = "") -> list[int]:
        """Return the blocks of the longest cached prefix of ``token_ids``, in order.

        The caller takes references before anything else runs.
        """
        node = self._begin(token_ids, namespace)
        blocks: list[int] = []
        self._clock += 1
        for key in self._keys(token_ids):
            node = _child(node, key, namespace) if node is not None else None
            if node is None:
                break
            node.last_used = self._clock
            blocks.append(node.block)
        return blocks

    def runs(self) -> list[CachedRun]:
        """Return all that is cached, without adapters' own: runs behind those that they go on."""
        found: list[CachedRun] = []
        roots = [root for root in self._roots.values() if _is_shareable(root.namespace)]
        open_nodes: list[tuple[_Node, int | None]] = [
            (node, None) for root in roots for node in root.children.values()
        ]
        while open_nodes:
            node, parent = open_nodes.pop()
            chain = [node]
            while len(node.children) == 1:
                (child,) = node.children.values()
                if child.namespace != node.namespace:
                    break
                node = child
                chain.append(node)
            run = CachedRun(
                namespace=node.namespace,
                parent=parent,
                token_ids=tuple(number for each in chain for number in _tokens(each)),
                blocks=tuple(each.block for each in chain),
                last_used=chain[0].last_used,
            )
            open_nodes += [(child, len(found)) for child in node.children.values()]
            found.append(run)
        return found

    def insert(
        self,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        *,
        namespace: Namespace = "",
        after: int | None = None,
    ) -> list[int]:
        """Cache computed blocks of a sequence, from its start or behind a block already cached.

        Where the tree already holds the same tokens in another block, its block is kept, and the
        caller is expected to change over to it: of two equal blocks one is enough.

        Args:
            token_ids: The tokens, at least ``len(blocks)`` full blocks of them.
            blocks: The blocks that hold them, referenced by the caller.
            namespace: Whose the sequence is.
            after: The sequence's cached block just before these; None at its start. It spares a
                long sequence the walk from the root at every step.

        Returns:
            The block that the tree holds at each position, as long as ``blocks``.
        """
        if not blocks:
            return []
        if after is None:
            begun = self._begin(token_ids, namespace)
            node = begun or self._roots.setdefault(namespace, _Node((), -1, None, namespace))
        else:
            node = self._nodes[after]
        held: list[int] = []
        self._clock += 1
        for key, block in zip(self._keys(token_ids), blocks, strict=False):
            child = _child(node, key, namespace)
            if child is None:
                own_key = _key_behind(node, key, namespace)
                child = _Node(own_key, block, node, namespace)
                node.children[own_key] = child
                self._nodes[block] = child
                self._allocator.share(block)
            child.last_used = self._clock
            held.append(child.block)
            node = child
        return held

    def acquire(self, block: int) -> None:
        """Take a reference on any owned block, cached or not, for a sequence."""
        if self._allocator.share(block) == 2 and block in self._nodes:
            self.num_evictable -= 1

    def release(self, block: int) -> None:
        """Drop a sequence's reference on any block, cached or not."""
        if self._allocator.release(block) == 1 and block in self._nodes:
            self.num_evictable += 1
            self._offer(self._nodes[block])

    def behind(
        self,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        *,
        namespace: Namespace,
        is_there: Callable[[bytes], bool],
    ) -> list[tuple[bytes, Namespace]]:
        """Return the digests, and whose they are, of a text's blocks behind its cached ones.

        They end where ``is_there`` knows none. What all may share goes before one's own.
        """
        last = self._nodes[blocks[-1]] if blocks else None
        before = None if last is None else _digest_of(last)
        shares = isinstance(namespace, str)  # an adapter's keys and values are its own
        owner = last.namespace if last is not None else PUBLIC if shares else namespace
        found: list[tuple[bytes, Namespace]] = []
        for key in list(self._keys(token_ids))[len(blocks) :]:
            owners = (PUBLIC, namespace) if owner == PUBLIC else (namespace,)
            choices = [
                (digest_behind(before or digest_of_root(one), one, key), one) for one in owners
            ]
            chosen = next((each for each in choices if is_there(each[0])), None)
            if chosen is None:
                break
            before, owner = chosen
            found.append(chosen)
        return found

    def evict(
        self, num_blocks: int, on_eviction: Callable[[bytes, int], None] | None = None
    ) -> int:
        """Free up to ``num_blocks`` blocks that only the tree references, oldest leaves first.

        ``on_eviction`` is told the digest of each text that ends with one, and the block.

        Returns:
            Blocks freed.
        """
        freed = 0
        while freed < num_blocks and self._candidates:
            last_used, _, node = heapq.heappop(self._candidates)
            node.is_queued = False
            if not self._is_evictable(node):
                continue  # used again or given a child since; offered again when that ends
            if node.last_used != last_used:
                self._offer(node)
                continue
            if on_eviction is not None:
                on_eviction(_digest_of(node), node.block)
            self._remove(node)
            freed += 1
        return freed

    def _begin(self, token_ids: Sequence[int], namespace: Namespace) -> _Node | None:
        """Return the root that a text hangs from: the public one, where that knows its beginning.

        One text has one place, so that no block stands twice.
        """
        public = self._roots.get(PUBLIC) if isinstance(namespace, str) else None
        first = tuple(token_ids[: self._block_size])
        if public is not None and first in public.children:
            return public
        return self._roots.get(namespace)

    def _keys(self, token_ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        size = self._block_size
        for start in range(0, len(token_ids) - size + 1, size):
            yield tuple(token_ids[start : start + size])

    def _is_evictable(self, node: _Node) -> bool:
        return not node.children and self._allocator.references(node.block) == 1

    def _offer(self, node: _Node) -> None:
        # One entry a node: without the flag a hot prefix would grow the heap at every request.
        if not node.is_queued and self._is_evictable(node):
            node.is_queued = True
            heapq.heappush(self._candidates, (node.last_used, node.block, node))

    def _remove(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None  # a root is never a candidate: it has no block
        del parent.children[node.key]
        del self._nodes[node.block]
        if self._on_removal is not None:
            self._on_removal(node.block)
        self._allocator.release(node.block)
        self.num_evictable -= 1
        if parent.parent is not None:
            parent.last_used = max(parent.last_used, node.last_used)
            self._offer(parent)
        elif not parent.children:
            del self._roots[parent.namespace]


def _child(node: _Node, key: tuple[int, ...], namespace: Namespace) -> _Node | None:
    """Return what goes on with some tokens, of one's own or for all."""
    own = node.children.get(_key_behind(node, key, namespace))
    return own or (node.children.get(key) if node.namespace == PUBLIC else None)


def _key_behind(node: _Node, key: tuple[int, ...], namespace: Namespace) -> _Key:
    return key if node.namespace == namespace else (namespace, key)


def _tokens(node: _Node) -> Sequence[int]:
    key: Any = node.key
    is_own = node.parent is None or node.parent.namespace == node.namespace
    tokens: Sequence[int] = key if is_own else key[1]
    return tokens


def _is_shareable(namespace: Namespace) -> bool:
    """Whether a namespace means the same in another process: adapters' numbers do not."""
    return isinstance(namespace, str) or namespace == PUBLIC


def _digest_of(node: _Node) -> bytes:
    """Return the digest of the text up to a node; it is made once for each."""
    chain: list[_Node] = []
    at = node
    while at.digest is None and at.parent is not None:
        chain.append(at)
        at = at.parent
    digest = at.digest if at.digest is not None else digest_of_root(at.namespace)
    for each in reversed(chain):
        digest = each.digest = digest_behind(digest, each.namespace, _tokens(each))
    return digest
