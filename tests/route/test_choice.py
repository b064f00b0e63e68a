"""Which replica gets a request, by numbers alone."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from zse.route.choice import BLOCKS_A_REQUEST, WAKE_BUSYNESS, choose


@dataclass
class Candidate:
    key: str
    busyness: float = 0.0
    is_asleep: bool = False


def chosen(candidates, matched=None, num_blocks=0, draw=None):
    draw = draw or random.Random(1).randrange
    found = choose(candidates, num_blocks=num_blocks, matched=matched or {}, draw=draw)
    return candidates[found.index].key


def test_the_less_busy_of_two_by_lot_is_chosen():
    candidates = [Candidate("a", 3.0), Candidate("b", 1.0)]
    assert chosen(candidates) == "b"


def test_the_least_busy_of_many_is_not_always_chosen_so_that_not_all_routers_meet_there():
    candidates = [Candidate(str(number), float(number)) for number in range(10)]
    drawn = random.Random(3).randrange
    found = {chosen(candidates, draw=drawn) for _ in range(300)}
    assert {"0", "1", "2", "3"} <= found
    assert "9" not in found  # the busiest loses against whoever is drawn with it


def test_who_has_the_prefix_is_chosen_though_not_drawn():
    candidates = [Candidate(str(number)) for number in range(50)]
    drawn = random.Random(4).randrange
    found = {chosen(candidates, {"31": 8}, 16, drawn) for _ in range(50)}
    assert found == {"31"}


def test_a_prefix_is_worth_as_many_requests_as_its_blocks_cost():
    blocks = 4 * BLOCKS_A_REQUEST
    holder, idle = Candidate("holder", 3.9), Candidate("idle")
    assert chosen([holder, idle], {"holder": blocks}, blocks) == "holder"
    holder.busyness = 4.1
    assert chosen([holder, idle], {"holder": blocks}, blocks) == "idle"


def test_who_sleeps_is_left_asleep_while_others_have_time():
    candidates = [Candidate("awake", WAKE_BUSYNESS - 1), Candidate("asleep", is_asleep=True)]
    assert chosen(candidates) == "awake"
    candidates[0].busyness = WAKE_BUSYNESS
    assert chosen(candidates) == "asleep"


def test_one_sleeper_is_woken_for_many_requests():
    candidates = [Candidate(name, is_asleep=True) for name in "abc"]
    first = chosen(candidates)
    next(each for each in candidates if each.key == first).busyness = 1.0
    assert chosen(candidates) == first


@given(
    st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.integers(0, 64)), min_size=1),
    st.integers(0, 2**32),
)
def test_somebody_is_always_chosen_and_a_sleeper_only_where_it_is_needed(rows, seed):
    candidates = [Candidate(str(i), busy, asleep) for i, (busy, asleep, _) in enumerate(rows)]
    matched = {str(i): blocks for i, (_, _, blocks) in enumerate(rows) if blocks}
    found = choose(candidates, num_blocks=64, matched=matched, draw=random.Random(seed).randrange)
    one = candidates[found.index]
    assert found.num_matched == matched.get(one.key, 0)
    if one.is_asleep:
        awake = [each.busyness for each in candidates if not each.is_asleep]
        assert not awake or min(awake) >= WAKE_BUSYNESS
