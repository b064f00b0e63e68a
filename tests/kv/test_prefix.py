from __future__ import annotations

import pytest

from zse.kv.blocks import BlockAllocator
from zse.kv.prefix import PUBLIC, RadixTree


@pytest.fixture
def allocator():
    return BlockAllocator(8)


@pytest.fixture
def tree(allocator):
    return RadixTree(allocator, block_size=2)


def cache(tree, allocator, token_ids, **options):
    """Compute a prefix as a sequence that ends at once."""
    blocks = allocator.allocate(len(token_ids) // 2)
    held = tree.insert(token_ids, blocks, **options)
    for block in reversed(blocks):
        tree.release(block)
    return held


def in_use(allocator):
    return allocator.num_blocks - allocator.num_free


def test_a_match_is_the_longest_prefix_of_whole_blocks(tree, allocator):
    blocks = cache(tree, allocator, [1, 2, 3, 4, 5, 6])
    assert tree.match([1, 2, 3, 4, 5, 9]) == blocks[:2]
    assert len(tree.match([1, 2, 3])) == 1
    assert tree.match([1]) == []
    assert tree.match([2, 1]) == []


def test_branches_share_their_common_blocks(tree, allocator):
    first = cache(tree, allocator, [1, 2, 3, 4])
    second = cache(tree, allocator, [1, 2, 7, 8])
    assert first[0] == second[0]
    assert len(list(tree.blocks())) == 3
    assert in_use(allocator) == 3


def test_an_equal_block_is_kept_once_and_the_second_is_freed(tree, allocator):
    first = cache(tree, allocator, [1, 2])
    assert cache(tree, allocator, [1, 2]) == first
    assert in_use(allocator) == 1


def test_an_insertion_can_go_on_behind_a_cached_block(tree, allocator):
    first, second = allocator.allocate(2)
    tree.insert([1, 2], [first])
    tree.insert([3, 4], [second], after=first)
    assert tree.match([1, 2, 3, 4]) == [first, second]


def test_namespaces_do_not_see_each_other(tree, allocator):
    cache(tree, allocator, [1, 2], namespace="a")
    assert tree.match([1, 2], namespace="b") == []
    assert tree.match([1, 2]) == []
    assert len(tree.match([1, 2], namespace="a")) == 1


def test_the_least_recently_used_leaf_is_evicted_first(tree, allocator):
    cache(tree, allocator, [1, 2])
    cache(tree, allocator, [3, 4])
    tree.match([1, 2])
    assert tree.evict(1) == 1
    assert tree.match([3, 4]) == []
    assert len(tree.match([1, 2])) == 1


def test_eviction_takes_leaves_before_their_parents(tree, allocator):
    cache(tree, allocator, [1, 2, 3, 4, 5, 6])
    assert tree.evict(2) == 2
    assert len(tree.match([1, 2, 3, 4, 5, 6])) == 1


def test_a_block_in_use_is_never_evicted(tree, allocator):
    (block,) = cache(tree, allocator, [1, 2])
    tree.acquire(block)
    assert tree.num_evictable == 0
    assert tree.evict(1) == 0
    tree.release(block)
    assert tree.num_evictable == 1
    assert tree.evict(1) == 1
    assert in_use(allocator) == 0


def test_a_hot_prefix_stands_once_among_the_candidates(tree, allocator):
    (block,) = cache(tree, allocator, [1, 2])
    for _ in range(100):
        tree.acquire(block)
        tree.release(block)
    assert len(tree._candidates) == 1


def test_clearing_frees_every_unused_block_and_forgets_empty_namespaces(tree, allocator):
    cache(tree, allocator, [1, 2, 3, 4], namespace="a")
    (kept, _) = cache(tree, allocator, [1, 2, 3, 4], namespace="b")
    tree.acquire(kept)
    assert tree.evict(tree.num_evictable) == 3
    assert list(tree.blocks()) == [kept]
    assert set(tree._roots) == {"b"}
    tree.release(kept)
    assert tree.evict(tree.num_evictable) == 1
    assert allocator.num_free == 8


def test_what_all_may_share_has_one_place_and_what_goes_on_from_it_has_one_owner(tree, allocator):
    public = cache(tree, allocator, [1, 2, 3, 4], namespace=PUBLIC)
    ann = cache(tree, allocator, [1, 2, 3, 4, 5, 6], namespace="ann")
    assert ann[:2] == public
    assert tree.match([1, 2, 3, 4, 5, 6], namespace="ann") == ann
    assert tree.match([1, 2, 3, 4, 5, 6], namespace="bob") == public
    assert tree.match([1, 2, 3, 4, 5, 6]) == public
    assert [(run.namespace, run.parent, run.token_ids) for run in tree.runs()] == [
        (PUBLIC, None, (1, 2, 3, 4)),
        ("ann", 0, (5, 6)),
    ]


def test_an_adapter_shares_nothing_that_the_model_computed_without_it(tree, allocator):
    public = cache(tree, allocator, [1, 2, 3, 4], namespace=PUBLIC)
    assert tree.match([1, 2, 3, 4], namespace=(3, "")) == []
    own = cache(tree, allocator, [1, 2, 3, 4], namespace=(3, ""))
    assert not set(own) & set(public)
    left = set()
    tree.evict(4, lambda digest, _block: left.add(digest))
    for namespace, count in (("ann", 2), ((3, ""), 2), ((4, ""), 0)):
        found = tree.behind([1, 2, 3, 4], [], namespace=namespace, is_there=left.__contains__)
        assert len(found) == count
    owners = {owner for _, owner in found}
    assert PUBLIC not in owners


def test_a_public_prefix_that_was_evicted_leaves_no_trace(tree, allocator):
    cache(tree, allocator, [1, 2], namespace=PUBLIC)
    cache(tree, allocator, [1, 2, 3, 4], namespace="ann")
    tree.evict(8)
    assert in_use(allocator) == 0
    held = cache(tree, allocator, [1, 2, 3, 4], namespace="ann")
    assert tree.match([1, 2, 3, 4], namespace="ann") == held
    assert tree.match([1, 2], namespace="bob") == []
