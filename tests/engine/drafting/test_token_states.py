"""States of a sequence's newest tokens: random rooms, drops and reads against a plain list."""

from __future__ import annotations

import random
import struct

from zse.engine.drafting.token_states import TokenStates


def fill(states: TokenStates, start: int, count: int, mark: int) -> None:
    rows = [struct.pack("2f", place, mark) for place in range(start, start + count)]
    states.room(start, count)[:] = b"".join(rows)


def test_rows_are_the_newest_of_their_places_and_have_no_gap() -> None:
    for seed in range(200):
        generator = random.Random(seed)
        states, model = TokenStates(2, most=9), dict[int, int]()
        end = 0
        for mark in range(30):
            start = max(0, end - generator.randrange(4)) + (generator.random() < 0.05) * 3
            count = generator.choice([1, 1, 1, 2, 5, 12])
            fill(states, start, count, mark)
            model = {place: old for place, old in model.items() if place < start}
            if model and max(model) + 1 != start:
                model.clear()
            end = start + count
            model |= dict.fromkeys(range(start, end), mark)
            if generator.random() < 0.3:
                states.drop(end - generator.randrange(1, 6))
            assert states.end == end
            assert min(model) <= states.first < end
            first = generator.randint(states.first, end)
            rows = list(struct.iter_unpack("2f", states.rows(first, end)))
            assert rows == [(place, model[place]) for place in range(first, end)]


def test_states_that_nobody_reads_are_bounded() -> None:
    states = TokenStates(2, most=8)
    for place in range(100):
        fill(states, place, 1, 0)
    assert (states.first, states.end) == (92, 100)
    fill(states, 100, 50, 1)  # those of one step stay together
    assert (states.first, states.end) == (100, 150)
