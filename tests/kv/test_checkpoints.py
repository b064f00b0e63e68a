"""State checkpoints: whose they are, and what becomes of them."""

from __future__ import annotations

import pytest

from zse.errors import EngineError
from zse.kv.cache import KVCache
from zse.kv.checkpoints import Checkpoints

TEXT = list(range(100, 120))


def kept(checkpoints: Checkpoints, block: int | None) -> int:
    checkpoint = checkpoints.reserve()
    assert checkpoint is not None
    checkpoints.attach(checkpoint, block)
    return checkpoint


def test_a_prefix_is_reused_as_far_as_its_longest_checkpoint() -> None:
    checkpoints = Checkpoints(4)
    kept(checkpoints, 7)
    longest = kept(checkpoints, 3)
    assert checkpoints.longest([7, 5, 3, 9]) == (3, longest)
    assert checkpoints.longest([5, 9]) == (0, None)


def test_the_least_recently_used_makes_room() -> None:
    checkpoints = Checkpoints(2)
    first = kept(checkpoints, 1)
    kept(checkpoints, 2)
    checkpoints.hold(first)
    checkpoints.let_go(first)  # used last
    kept(checkpoints, 3)
    assert checkpoints.longest([2]) == (0, None)
    assert checkpoints.longest([1]) == (1, first)


def test_a_held_checkpoint_outlives_its_block_and_makes_no_room() -> None:
    checkpoints = Checkpoints(1)
    held = kept(checkpoints, 1)
    checkpoints.hold(held)
    assert checkpoints.reserve() is None
    checkpoints.forget(1)
    assert checkpoints.reserve() is None
    checkpoints.check_consistency([], [held])
    checkpoints.let_go(held)
    assert checkpoints.reserve() == held


def test_of_two_states_of_one_prefix_one_is_kept() -> None:
    checkpoints = Checkpoints(2)
    first = kept(checkpoints, 1)
    second = kept(checkpoints, 1)
    assert checkpoints.longest([1]) == (1, first)
    assert checkpoints.reserve() == second


def test_what_disagrees_is_told() -> None:
    checkpoints = Checkpoints(2)
    checkpoint = kept(checkpoints, 1)
    with pytest.raises(EngineError, match="not cached"):
        checkpoints.check_consistency([], [])
    with pytest.raises(EngineError, match="held"):
        checkpoints.check_consistency([1], [checkpoint])


def test_a_cache_gives_a_table_the_state_that_ends_its_prefix() -> None:
    cache = KVCache(num_blocks=16, block_size=4, num_checkpoints=2)
    assert cache.checkpoints is not None
    first = cache.open_table(TEXT)
    assert first is not None
    assert cache.next_checkpoint(first, 0, len(TEXT)) == 16
    checkpoint = cache.checkpoints.reserve()
    assert checkpoint is not None
    cache.commit(first, TEXT, num_computed=20)
    cache.keep_state(first, checkpoint, num_computed=16)
    second = cache.open_table([*TEXT, 7])
    assert second is not None
    assert (second.num_reused_tokens, second.restored_from) == (16, checkpoint)
    cache.check_consistency([first, second])
    for table in (first, second):
        cache.close_table(table)
    cache.check_consistency([])
    assert cache.flush() == 5
    assert cache.checkpoints.longest(first.blocks) == (0, None)
    assert {cache.checkpoints.reserve(), cache.checkpoints.reserve()} == {0, 1}


@pytest.mark.parametrize(("num_tokens", "kept_at"), [(16, 0), (17, 16), (20, 16), (21, 20)])
def test_a_state_is_kept_where_it_spares_some_blocks(num_tokens: int, kept_at: int) -> None:
    cache = KVCache(num_blocks=16, block_size=4, num_checkpoints=2)
    table = cache.open_table(list(range(num_tokens)))
    assert table is not None
    assert cache.next_checkpoint(table, 0, num_tokens) == kept_at
    assert cache.next_checkpoint(table, 16, num_tokens) == (20 if kept_at == 20 else 0)


def test_without_room_for_states_nothing_is_reused() -> None:
    cache = KVCache(num_blocks=16, block_size=4, num_checkpoints=0)
    table = cache.open_table(TEXT)
    assert table is not None
    cache.commit(table, TEXT, num_computed=20)
    assert cache.next_checkpoint(table, 0, 20) == 0
    cache.close_table(table)
    assert cache.num_cached == 0
