"""A queue that no key can have all of, and that is bounded."""

import asyncio

import pytest

from zse.errors import OverloadedError
from zse.serve.fair_queue import FairQueue

AT_ONCE, MOST = 2, 64


class Work:
    """What is done until a test says that it is done, one of a key at once."""

    def __init__(self):
        self.queue = FairQueue(at_once=AT_ONCE, each=1, most=MOST)
        self.begun: list[str] = []
        self.is_done = asyncio.Event()
        self.tasks: list[asyncio.Task] = []

    async def begin(self, tenant):
        """Have some work come; return its task, which has got as far as it gets."""
        task = asyncio.create_task(self._do(tenant))
        self.tasks.append(task)
        for _ in range(4):
            await asyncio.sleep(0)
        return task

    async def _do(self, tenant):
        def start():
            self.begun.append(tenant)
            return asyncio.ensure_future(self.is_done.wait())

        await self.queue.run(tenant, start)

    async def end(self):
        self.is_done.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_key_whose_work_takes_long_leaves_a_place_to_others():
    async def main():
        work = Work()
        for tenant in ("greedy", "greedy", "greedy", "other", "third"):
            await work.begin(tenant)
        begun = list(work.begun)
        await work.end()
        return begun, work.begun

    begun, read = asyncio.run(main())
    assert begun == ["greedy", "other"]
    assert sorted(read) == ["greedy", "greedy", "greedy", "other", "third"]


def test_without_keys_there_are_as_many_at_once_as_may_be():
    async def main():
        work = Work()
        for _ in range(AT_ONCE + 1):
            await work.begin("")
        begun = len(work.begun)
        await work.end()
        return begun, len(work.begun)

    assert asyncio.run(main()) == (AT_ONCE, AT_ONCE + 1)


@pytest.mark.parametrize("tenant", ["", "greedy"])
def test_only_so_many_wait_and_of_a_key_only_as_many_as_leave_others_room(tenant):
    async def main():
        work = Work()
        for _ in range(MOST + 8):
            await work.begin(tenant)
        other = await work.begin("other" if tenant else "")
        refused = isinstance(other.exception() if other.done() else None, OverloadedError)
        ends = await work.end()
        again = await work.begin(tenant)
        await again
        return refused, ends

    refused, ends = asyncio.run(main())
    num_refused = sum(isinstance(end, OverloadedError) for end in ends)
    assert refused == (not tenant)
    assert num_refused == (9 if not tenant else MOST + 8 - MOST * 4 // 5)


def test_who_leaves_while_waiting_keeps_nobody_from_a_place():
    async def main():
        work = Work()
        first = await work.begin("a")
        waiting = await work.begin("a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        work.is_done.set()
        await first
        await (await work.begin("a"))
        return work.begun

    assert asyncio.run(main()) == ["a", "a"]


def test_who_leaves_in_the_midst_of_its_work_keeps_its_place_until_the_work_ends():
    async def main():
        work = Work()
        first, second = await work.begin("a"), await work.begin("a")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        before = list(work.begun)
        await work.begin("b")
        work.is_done.set()
        await second
        return before, work.begun

    assert asyncio.run(main()) == (["a"], ["a", "b", "a"])


def test_work_that_cannot_be_started_gives_its_place_back():
    async def main():
        queue = FairQueue(at_once=1, each=1, most=1)

        def fail():
            raise RuntimeError("no thread")

        for tenant in ("a", "a", ""):
            with pytest.raises(RuntimeError):
                await queue.run(tenant, fail)
        return await queue.run("a", lambda: asyncio.ensure_future(asyncio.sleep(0, "done")))

    assert asyncio.run(main()) == "done"
