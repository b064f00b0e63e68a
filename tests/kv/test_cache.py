from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.kv.cache import KVCache
from zse.kv.table import BlockTable


@pytest.fixture
def cache():
    return KVCache(num_blocks=6, block_size=4)


def commit(cache, table, token_ids):
    """Offer all that is full; what is given up for it is free at once."""
    given_up = cache.commit(table, token_ids, num_computed=len(token_ids))
    cache.close_table(BlockTable(blocks=given_up))


def compute(cache, token_ids, **options):
    table = cache.open_table(token_ids, **options)
    commit(cache, table, token_ids)
    return table


def test_a_table_has_a_block_for_every_started_block_of_tokens(cache):
    assert len(cache.open_table([0] * 9).blocks) == 3
    assert cache.num_available == 3


def test_no_room_takes_nothing(cache):
    assert cache.open_table([0] * 25) is None
    assert cache.num_available == 6


def test_a_reserve_is_left_untouched(cache):
    assert cache.open_table([0] * 17, num_reserved=2) is None
    assert cache.open_table([0] * 16, num_reserved=2) is not None


def test_a_closed_table_leaves_its_full_blocks_for_reuse(cache):
    cache.close_table(compute(cache, list(range(10))))
    assert cache.num_cached == 2
    assert cache.num_available == 6
    again = cache.open_table(list(range(10)))
    assert again.num_reused_tokens == 8
    assert cache.num_cached == 0


def test_the_last_token_is_always_left_to_compute(cache):
    cache.close_table(compute(cache, list(range(8))))
    assert cache.open_table(list(range(8))).num_reused_tokens == 4


def test_two_tables_that_compute_the_same_end_with_one_copy(cache):
    first, second = (cache.open_table(list(range(5))) for _ in range(2))
    assert first.blocks[0] != second.blocks[0]
    for table in (first, second):
        commit(cache, table, list(range(5)))
    assert first.blocks[0] == second.blocks[0]
    assert cache.num_available == 3
    cache.check_consistency([first, second])


def test_growth_evicts_cached_blocks_when_nothing_is_free(cache):
    cache.close_table(compute(cache, list(range(16))))
    table = cache.open_table([50] * 8)
    assert cache.grow_table(table, num_tokens=24)
    assert not cache.grow_table(table, num_tokens=25)
    assert len(table.blocks) == 6
    cache.check_consistency([table])


def test_reused_blocks_are_not_evicted_to_make_room_for_their_own_table(cache):
    cache.close_table(compute(cache, list(range(20))))
    table = cache.open_table(list(range(24)))
    assert table.num_reused_tokens == 20
    assert len(set(table.blocks)) == 6


def test_a_child_shares_its_parents_full_blocks_without_the_prefix_cache():
    cache = KVCache(num_blocks=6, block_size=4, prefix_cache=False)
    parent = compute(cache, list(range(10)))
    child = cache.open_table(list(range(10)), parent=parent, num_parent_tokens=10)
    assert child.blocks[:2] == parent.blocks[:2]
    assert child.blocks[2] != parent.blocks[2]
    cache.check_consistency([parent, child])
    cache.close_table(parent)
    cache.close_table(child)
    assert cache.num_cached == 0
    assert cache.num_available == 6


operations = st.lists(
    st.tuples(
        st.sampled_from(["open", "grow", "close", "flush"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=12),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(operations=operations, block_size=st.integers(1, 4), keeps=st.booleans())
def test_free_and_used_add_up_after_any_operation(operations, block_size, keeps):
    cache = KVCache(num_blocks=10, block_size=block_size, prefix_cache=keeps)
    tables, texts = [], []
    for name, token_ids, choice in operations:
        if name == "open":
            table = cache.open_table(token_ids, namespace="ab"[choice % 2])
            if table is not None:
                commit(cache, table, token_ids)
                tables.append(table)
                texts.append(token_ids)
        elif name == "flush":
            cache.flush()
        elif tables:
            index = choice % len(tables)
            if name == "close":
                cache.close_table(tables.pop(index))
                texts.pop(index)
            else:
                text = [*texts[index], *token_ids]
                if cache.grow_table(tables[index], num_tokens=len(text)):
                    texts[index] = text
                    commit(cache, tables[index], text)
        cache.check_consistency(tables)
        used = {block for table in tables for block in table.blocks}
        assert len(used) + cache.num_available == cache.num_blocks
        private = [table.blocks[table.num_cached :] for table in tables]
        assert len({b for blocks in private for b in blocks}) == sum(map(len, private))
    for table in tables:
        cache.close_table(table)
    cache.flush()
    assert cache.num_available == cache.num_blocks
    assert cache.num_cached == 0
