"""Whose document is read next, and how many wait for it."""

import asyncio

import pytest

from zse.errors import OverloadedError
from zse.serve.documents.turns import AT_ONCE, MOST_WAITING, ReadingTurns


class Reading:
    """Documents that are read until a test says that they are done."""

    def __init__(self):
        self.turns = ReadingTurns()
        self.begun: list[str] = []
        self.is_done = asyncio.Event()
        self.tasks: list[asyncio.Task] = []

    async def begin(self, tenant):
        """Have a document come; return its task, which has got as far as it gets."""
        task = asyncio.create_task(self._read(tenant))
        self.tasks.append(task)
        for _ in range(4):
            await asyncio.sleep(0)
        return task

    async def _read(self, tenant):
        async with self.turns.turn(tenant):
            self.begun.append(tenant)
            await self.is_done.wait()

    async def end(self):
        self.is_done.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_key_whose_documents_take_long_leaves_a_place_to_others():
    async def main():
        reading = Reading()
        for tenant in ("greedy", "greedy", "greedy", "other", "third"):
            await reading.begin(tenant)
        begun = list(reading.begun)
        await reading.end()
        return begun, reading.begun

    begun, read = asyncio.run(main())
    assert begun == ["greedy", "other"]
    assert sorted(read) == ["greedy", "greedy", "greedy", "other", "third"]


def test_without_keys_there_are_as_many_at_once_as_may_be():
    async def main():
        reading = Reading()
        for _ in range(AT_ONCE + 1):
            await reading.begin("")
        begun = len(reading.begun)
        await reading.end()
        return begun, len(reading.begun)

    assert asyncio.run(main()) == (AT_ONCE, AT_ONCE + 1)


@pytest.mark.parametrize("tenant", ["", "greedy"])
def test_only_so_many_wait_and_of_a_key_only_as_many_as_leave_others_room(tenant):
    async def main():
        reading = Reading()
        for _ in range(MOST_WAITING + 8):
            await reading.begin(tenant)
        other = await reading.begin("other" if tenant else "")
        refused = isinstance(other.exception() if other.done() else None, OverloadedError)
        ends = await reading.end()
        again = await reading.begin(tenant)
        await again
        return refused, ends

    refused, ends = asyncio.run(main())
    num_refused = sum(isinstance(end, OverloadedError) for end in ends)
    assert refused == (not tenant)
    assert num_refused == (9 if not tenant else MOST_WAITING + 8 - MOST_WAITING * 4 // 5)


def test_who_leaves_while_waiting_keeps_nobody_from_a_place():
    async def main():
        reading = Reading()
        first = await reading.begin("a")
        waiting = await reading.begin("a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        reading.is_done.set()
        await first
        await (await reading.begin("a"))
        return reading.begun

    assert asyncio.run(main()) == ["a", "a"]
