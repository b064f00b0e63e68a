"""Who leaves, and when."""

from hypothesis import given
from hypothesis import strategies as st

from zse.serve.fleet.turns import Resident, who_leaves

RESIDENTS = st.lists(
    st.builds(
        Resident,
        name=st.text(min_size=1, max_size=4),
        last_asked=st.floats(0, 100),
        since=st.floats(0, 100),
        is_free=st.booleans(),
    ),
    max_size=6,
)


def resident(name, last_asked=0.0, since=0.0, is_free=True):
    return Resident(name=name, last_asked=last_asked, since=since, is_free=is_free)


def test_an_idle_model_leaves_at_once_the_least_recently_asked_first():
    residents = [resident("a", 3), resident("b", 1), resident("c", 0, is_free=False)]
    leave = who_leaves(residents, asked_since=5, turn_seconds=1)
    assert (leave.name, leave.at) == ("b", float("-inf"))


def test_a_model_in_use_goes_on_for_a_turn_since_it_came():
    leave = who_leaves([resident("a", since=7, is_free=False)], asked_since=5, turn_seconds=2)
    assert (leave.name, leave.at) == ("a", 9)


def test_a_model_in_use_goes_on_for_a_turn_since_the_other_was_asked_for():
    leave = who_leaves([resident("a", since=1, is_free=False)], asked_since=5, turn_seconds=2)
    assert leave.at == 7


def test_nobody_leaves_where_nobody_may():
    assert who_leaves([], asked_since=5, turn_seconds=2) is None


@given(RESIDENTS, st.floats(0, 100), st.floats(0, 10))
def test_whoever_waits_gets_a_place_within_a_turn_of_who_came_last(residents, asked, turn):
    leave = who_leaves(residents, asked_since=asked, turn_seconds=turn)
    assert (leave is None) == (not residents)
    if leave is not None:
        latest = max([asked, *(one.since for one in residents)])
        assert leave.at <= latest + turn
        assert leave.name in {one.name for one in residents}
