"""Who looks after deadlines of connections, and what it makes of time in which it did not run."""

import asyncio
from types import SimpleNamespace

import pytest

from zse.serve.http.door import Door
from zse.server_options import HTTPOptions


class Visitor:
    """Notes when it is looked at."""

    def __init__(self):
        self.looks = []

    def check(self, now):
        self.looks.append(now)


@pytest.mark.parametrize(
    ("late_seconds", "num_looks"),
    [
        ([0.0, 0.01, 0.0], [1, 2, 3]),
        ([9.0, 0.0, 0.0], [0, 1, 2]),  # what came meanwhile is read before anybody is judged
        ([9.0, 9.0, 9.0, 9.0], [0, 1, 1, 2]),  # who is always late judges all the same
    ],
    ids=["in time", "stopped for a while", "always late"],
)
def test_a_door_that_did_not_run_lets_what_came_be_read_before_it_judges(late_seconds, num_looks):
    async def looks_of():
        door, visitor = Door(HTTPOptions(read_timeout=1.0)), Visitor()
        door.enter(visitor)
        found = []
        for seconds in late_seconds:
            door._sweeper.cancel()
            door._sweep(SimpleNamespace(time=lambda: door._due + seconds))  # noqa: B023
            found.append(len(visitor.looks))
        door._sweeper.cancel()
        return found

    assert asyncio.run(looks_of()) == num_looks
