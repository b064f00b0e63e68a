from __future__ import annotations

import pytest

from zse.errors import EngineError
from zse.kv.blocks import BlockAllocator


def test_freed_block_is_reused_first():
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(3)
    allocator.release(blocks[1])
    assert allocator.allocate(1) == [blocks[1]]


def test_allocation_is_all_or_nothing():
    allocator = BlockAllocator(3)
    assert allocator.allocate(4) is None
    assert allocator.num_free == 3
    assert sorted(allocator.allocate(3)) == [0, 1, 2]
    assert allocator.allocate(0) == []


def test_a_shared_block_is_freed_by_its_last_owner():
    allocator = BlockAllocator(1)
    (block,) = allocator.allocate(1)
    assert allocator.share(block) == 2
    assert allocator.release(block) == 1
    assert allocator.num_free == allocator.num_blocks - 1
    assert allocator.release(block) == 0
    assert allocator.num_free == 1


@pytest.mark.parametrize("action", ["share", "release"])
@pytest.mark.parametrize("block", [0, -1, 7])
def test_a_block_without_an_owner_cannot_be_touched(action, block):
    with pytest.raises(EngineError, match=f"cannot {action} block {block}"):
        getattr(BlockAllocator(2), action)(block)


def test_a_pool_without_blocks_is_refused():
    with pytest.raises(EngineError, match="0 blocks"):
        BlockAllocator(0)


def test_the_consistency_check_finds_a_leak_and_a_double_owner():
    allocator = BlockAllocator(3)
    (block,) = allocator.allocate(1)
    allocator.check_consistency([[block]])
    with pytest.raises(EngineError, match="has 0 owners but counts 1"):
        allocator.check_consistency([])
    with pytest.raises(EngineError, match="has 2 owners but counts 1"):
        allocator.check_consistency([[block], [block]])


def test_the_free_blocks_are_told_in_ascending_order():
    allocator = BlockAllocator(5)
    taken = allocator.allocate(3)
    allocator.release(taken[1])
    assert allocator.free_blocks() == sorted({*range(5)} - {taken[0], taken[2]})
