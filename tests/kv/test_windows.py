"""Blocks of windows: what a sequence holds, what is given back, and from where prefixes go on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.errors import EngineError
from zse.kv.cache import KVCache
from zse.kv.table import BlockTable
from zse.kv.windows import WindowGroup, most_blocks


def make_cache(window=6, num_blocks=9, **options):
    group = WindowGroup(window=window, num_blocks=num_blocks)
    return KVCache(**{"num_blocks": 30, "block_size": 4, **options}, windows=[group])


def compute(cache, token_ids, *, step=100, **options):
    """Compute a sequence in steps of so many tokens."""
    table = cache.open_table(token_ids, **options)
    go_on(cache, table, token_ids, start=table.num_reused_tokens, step=step)
    return table


def go_on(cache, table, token_ids, *, start, step=1):
    for first in range(start, len(token_ids), step):
        end = min(first + step, len(token_ids))
        cache.cover(table, start=first, end=end)
        given_up = cache.commit(table, token_ids, num_computed=end)
        cache.close_table(BlockTable(blocks=given_up))
        cache.advance(table, num_computed=end)


def text(length, seed=0):
    return [(seed + 1) * 1000 + index for index in range(length)]


def test_a_sequence_holds_its_window_however_long_it_is():
    cache = make_cache(window=6)
    table = compute(cache, text(24))
    tokens = text(24)
    while cache.grow_table(table, num_tokens=len(tokens) + 1):
        tokens.append(7)
        cache.cover(table, start=len(tokens) - 1, end=len(tokens))
        (own,) = table.windows
        assert own.first == ((len(tokens) - 1) // 4 * 4 - 5) // 4
        assert own.end == -(-len(tokens) // 4)
        assert len(own.blocks) <= 3
        cache.commit(table, tokens, num_computed=len(tokens))
        cache.advance(table, num_computed=len(tokens))
        cache.check_consistency([table])
    assert len(tokens) == 30 * 4


def test_a_long_prompt_gives_back_on_the_way_what_no_later_token_sees():
    cache = make_cache(window=6, num_blocks=4, prefix_cache=False)
    table = compute(cache, text(100), step=8)
    assert [own.first for own in table.windows] == [23]


def test_a_prefix_goes_on_where_the_blocks_of_its_last_window_are():
    cache = make_cache(window=6, num_blocks=9)
    cache.close_table(compute(cache, text(24), step=4))
    again = cache.open_table([*text(24), 1])
    (own,) = again.windows
    assert again.num_reused_tokens == 24
    assert (own.first, len(own.blocks)) == (4, 2)
    cache.check_consistency([again])


def test_a_prefix_whose_window_is_gone_is_reused_as_far_as_another_one_is_there():
    cache = make_cache(window=6, num_blocks=5)
    cache.close_table(compute(cache, text(8), step=4))
    found = compute(cache, text(25), step=4)
    assert found.num_reused_tokens == 8
    cache.close_table(found)  # the last window, and one that was found, outlive what was passed
    short, full = cache.open_table([*text(16), 5]), cache.open_table([*text(24), 5])
    assert (short.num_reused_tokens, full.num_reused_tokens) == (8, 24)
    cache.check_consistency([short, full])


def test_what_was_passed_on_the_way_goes_before_what_ended_a_sequence():
    cache = make_cache(window=6, num_blocks=5)
    cache.close_table(compute(cache, text(8), step=4))
    cache.close_table(compute(cache, text(24, seed=1), step=4))
    table = cache.open_table([*text(8), 5])
    assert table.num_reused_tokens == 8


def test_a_prefix_without_any_window_is_computed_again():
    cache = make_cache(window=6, num_blocks=3)
    cache.close_table(compute(cache, text(12), step=4))
    cache.close_table(compute(cache, text(12, seed=1), step=4))
    again = cache.open_table([*text(12), 5])
    assert again.num_reused_tokens == 0
    cache.check_consistency([again])


def test_two_sequences_that_compute_the_same_end_with_one_copy():
    cache = make_cache(window=9)
    first, second = (cache.open_table(text(9)) for _ in range(2))
    for table in (first, second):
        cache.cover(table, start=0, end=9)
    assert first.windows[0].blocks[0] != second.windows[0].blocks[0]
    for table in (first, second):
        cache.close_table(BlockTable(blocks=cache.commit(table, text(9), num_computed=9)))
    assert first.windows[0].blocks[:2] == second.windows[0].blocks[:2]
    cache.check_consistency([first, second])


def test_a_child_shares_its_parents_window_without_the_prefix_cache():
    cache = make_cache(window=6, prefix_cache=False)
    parent = compute(cache, text(18), step=5)
    child = cache.open_table(text(18), parent=parent, num_parent_tokens=18)
    assert child.num_reused_tokens == 16
    assert child.windows[0].blocks == parent.windows[0].blocks[:2]
    cache.check_consistency([parent, child])


def test_a_child_of_a_parent_that_has_gone_on_is_computed_again():
    cache = make_cache(window=6, prefix_cache=False)
    parent = compute(cache, text(40), step=5)
    child = cache.open_table(text(18), parent=parent, num_parent_tokens=18)
    assert child.num_reused_tokens == 0


def test_forgotten_prefixes_give_back_their_windows():
    cache = make_cache(window=6, num_blocks=4)
    cache.close_table(compute(cache, text(16), step=4))
    cache.flush()
    table = compute(cache, text(16, seed=1))  # in all four blocks at once
    cache.check_consistency([table])


def test_sequences_count_on_their_windows_where_memory_is_short_of_them():
    group = WindowGroup(window=6, num_blocks=11, most_reserved=9)
    cache = KVCache(num_blocks=30, block_size=4, windows=[group])
    long = [cache.open_table(text(8, seed), most_tokens=60) for seed in (0, 1)]
    assert None not in long  # four blocks each
    assert cache.open_table(text(8), most_tokens=5) is None
    short = cache.open_table(text(2), most_tokens=4)
    assert short is not None
    assert not cache.fits(60)
    assert cache.fits(60, long[:1])
    cache.close_table(long[0])
    assert cache.fits(60)
    cache.check_consistency([long[1], short])


def test_a_pool_that_is_too_small_is_a_defect_with_words():
    cache = make_cache(window=6, num_blocks=2)
    with pytest.raises(EngineError, match="a window of 6 tokens has 2 blocks, fewer than"):
        compute(cache, text(12))


operations = st.lists(
    st.tuples(
        st.sampled_from(["open", "go on", "go on", "close", "flush"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=12),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(
    operations=operations,
    block_size=st.integers(1, 4),
    windows=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    step=st.integers(1, 5),
    keeps=st.booleans(),
)
def test_no_pool_runs_dry_and_every_block_that_is_seen_is_there(
    operations, block_size, windows, step, keeps
):
    most = [
        most_blocks(
            window, block_size=block_size, num_sequences=4, step_tokens=step, keeps_prefixes=keeps
        )
        for window in windows
    ]
    groups = [
        WindowGroup(window=window, num_blocks=min(count, 10))
        for window, count in zip(windows, most, strict=True)
    ]
    cache = KVCache(num_blocks=10, block_size=block_size, prefix_cache=keeps, windows=groups)
    running: list[tuple[BlockTable, list[int]]] = []
    for name, token_ids, choice in operations:
        if name == "open" and len(running) < 4:
            table = cache.open_table(token_ids)
            if table is None:
                continue
            running.append((table, token_ids))
            go_on(cache, table, token_ids, start=table.num_reused_tokens, step=step)
        elif name == "flush":
            cache.flush()
        elif name == "close" and running:
            cache.close_table(running.pop(choice % len(running))[0])
        elif name == "go on" and running:
            table, known = running[choice % len(running)]
            if cache.grow_table(table, num_tokens=len(known) + len(token_ids)):
                start = len(known)
                known += token_ids
                go_on(cache, table, known, start=start, step=step)
        tables = [table for table, _ in running]
        cache.check_consistency(tables)
        for table, known in running:
            for window, own in zip(windows, table.windows, strict=True):
                full = len(known) // block_size * block_size
                assert own.first == max(0, full + 1 - window) // block_size
                assert own.end == -(-len(known) // block_size)
                assert len(own.blocks) <= -(-window // block_size) + 2
    for table, _ in running:
        cache.close_table(table)
    cache.flush()
    cache.check_consistency([])
