"""Who has which beginning: matches are chains from the first block, memory is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from zse.route.prefixes import MAX_HOLDERS, PrefixTable


def test_a_match_counts_blocks_from_the_first_to_where_texts_part():
    table = PrefixTable(100)
    table.note([1, 2, 3, 4], "a")
    table.note([1, 2, 9], "b")
    assert table.match([1, 2, 3, 5]) == {"a": 3, "b": 2}
    assert table.match([7, 2, 3]) == {}
    assert table.match([]) == {}


def test_the_table_forgets_what_was_used_least_lately_and_ends_before_beginnings():
    table = PrefixTable(4)
    table.note([1, 2, 3], "a")
    table.note([4, 5], "a")
    assert len(table) == 4
    assert table.match([1, 2, 3]) == {"a": 2}
    table.note([1, 2], "a")  # used again
    table.note([6, 7], "a")
    assert table.match([1, 2]) == {"a": 2}
    assert table.match([4, 5]) == {}


def test_of_many_holders_the_latest_are_remembered():
    table = PrefixTable(10)
    for name in "abcdefg":
        table.note([1], name)
    assert set(table.match([1])) == set("gfed")
    assert MAX_HOLDERS == 4


@given(st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=6), st.sampled_from("abc"))))
def test_what_is_matched_was_noted_and_the_bound_holds(notes):
    table = PrefixTable(12)
    noted: dict[str, list[list[int]]] = {}
    for blocks, name in notes:
        digests = [hash(tuple(blocks[: end + 1])) for end in range(len(blocks))]
        table.note(digests, name)
        noted.setdefault(name, []).append(digests)
        assert len(table) <= 12
        for holder, number in table.match(digests).items():
            assert any(each[:number] == digests[:number] for each in noted[holder])
