"""Who looks after deadlines of connections, and what it makes of time in which it did not run."""

import asyncio
import time

from zse.serve.http.door import Door
from zse.server_options import HTTPOptions


class Visitor:
    """Notes when it is looked at."""

    def __init__(self):
        self.looks = []

    def check(self, now):
        self.looks.append(now)

    def turn_away(self):
        raise AssertionError("there was room")

    retire = turn_away


def test_a_door_that_did_not_run_lets_what_came_be_read_before_it_judges():
    async def sleep_through_deadlines():
        door, visitor = Door(HTTPOptions(read_timeout=0.2)), Visitor()
        assert door.enter(visitor)
        time.sleep(0.5)  # as a process that is stopped
        for _ in range(3):
            await asyncio.sleep(0)
        assert door._has_slept
        assert not visitor.looks
        while not visitor.looks:
            await asyncio.sleep(0.01)
        door.leave(visitor)

    asyncio.run(sleep_through_deadlines())


def test_a_door_that_is_always_late_judges_every_second_time():
    async def be_late():
        door, visitor = Door(HTTPOptions(read_timeout=0.2)), Visitor()
        door.enter(visitor)
        for _ in range(6):
            time.sleep(0.1)  # a loop with too much to do
            for _ in range(3):
                await asyncio.sleep(0)
        assert len(visitor.looks) == 3
        door.leave(visitor)

    asyncio.run(be_late())
