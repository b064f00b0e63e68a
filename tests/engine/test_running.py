"""The sequences that have blocks, and who of them would give theirs up for whom."""

import random
from types import SimpleNamespace

from zse.engine.running import Running


def sequence(rank, priority=0):
    return SimpleNamespace(rank=rank, request=SimpleNamespace(priority=priority))


def test_the_highest_rank_stands_first_whoever_comes_and_goes():
    draw, running, inside = random.Random(3), Running(), []
    for arrival in range(300):
        if inside and draw.random() < 0.4:
            running.leave(inside.pop(draw.randrange(len(inside))))
        else:
            inside.append(sequence((draw.randrange(5), -arrival), draw.randrange(3)))
            running.admit(inside[-1])
        assert [one.rank for one in running] == sorted([s.rank for s in inside], reverse=True)
        for priority in range(-1, 4):
            lower = any(s.request.priority < priority for s in inside)
            assert running.has_lower_than(priority) == lower


def test_nobody_is_lower_where_nobody_runs():
    assert not Running().has_lower_than(9)


def test_only_lower_rank_and_priority_together_make_a_victim_the_lowest_rank_first():
    running = Running()
    older, equal, low, lowest = (
        sequence((5, -1)),
        sequence((3, -3), 1),
        sequence((3, -4)),
        sequence((1, -9)),
    )
    for one in (low, older, lowest, equal):
        running.admit(one)
    assert running.victims_of(sequence((4, -2), 1)) == [lowest, low]
