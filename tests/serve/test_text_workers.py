import asyncio
import sys
import threading
import time

import pytest

from zse.errors import DeadlineError, TemplateError
from zse.serve.access.caller import Caller
from zse.serve.text_workers import SHORT_CHARACTERS, TextWorkers

LONG = SHORT_CHARACTERS + 1


class Workplace:
    """Workers, a gate that holds up the jobs, and the order in which they ran."""

    def __init__(self) -> None:
        self.workers = TextWorkers()
        self.gate = threading.Event()
        self.order: list[str] = []

    def ask(self, name, *, size, tenant="", request="", deadline=None):
        return asyncio.ensure_future(
            self.workers.run(
                lambda: self._work(name),
                num_characters=size,
                request_id=request or name,
                caller=Caller(key_id=tenant),
                deadline=deadline,
            )
        )

    def _work(self, name):
        self.gate.wait(30)
        self.order.append(name)
        return name


@pytest.fixture
def place():
    place = Workplace()
    yield place
    place.gate.set()
    place.workers.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_short_texts_are_read_while_long_ones_are(place):
    async def main():
        blocked = threading.Event()

        def read_slowly():
            blocked.wait(30)
            place.order.append("long")

        long = asyncio.ensure_future(
            place.workers.run(read_slowly, num_characters=LONG, request_id="long", caller=Caller())
        )
        place.gate.set()
        assert await place.ask("short", size=5) == "short"
        assert not long.done()
        blocked.set()
        await long

    asyncio.run(main())
    assert place.order == ["short", "long"]


def run_all(place, *asked):
    """Ask for everything behind a first job that holds the thread; return the order."""

    async def main():
        tasks = [place.ask("first", size=LONG, tenant="first")]
        tasks += [place.ask(**options) for options in asked]
        await asyncio.sleep(0)
        place.gate.set()
        await asyncio.gather(*tasks)
        return place.order[1:]

    return asyncio.run(main())


def test_a_request_of_many_texts_and_one_of_a_single_text_take_turns(place):
    crowd = [
        {"name": f"crowd-{i}", "size": LONG, "request": "crowd", "tenant": "a"} for i in range(5)
    ]
    order = run_all(place, *crowd, {"name": "other", "size": LONG, "tenant": "a"})
    assert order.index("other") <= 1


def test_tenants_take_turns_by_the_characters_worked_on(place):
    crowd = [{"name": f"crowd-{i}", "size": LONG, "tenant": "crowd"} for i in range(5)]
    order = run_all(place, *crowd, {"name": "other", "size": 4 * LONG, "tenant": "other"})
    assert order.index("other") <= 1


def test_of_a_tenants_texts_the_shorter_go_first(place):
    sizes = (4, 1, 3, 2)
    asked = [{"name": str(i), "size": i * LONG, "tenant": "a"} for i in sizes]
    assert run_all(place, *asked) == ["1", "2", "3", "4"]


def test_what_nobody_waits_for_any_more_is_not_done(place):
    async def main():
        first = place.ask("first", size=5)
        gone = place.ask("gone", size=5)
        last = place.ask("last", size=5)
        await asyncio.sleep(0)
        gone.cancel()
        place.gate.set()
        await asyncio.gather(first, last)

    asyncio.run(main())
    assert place.order == ["first", "last"]


def test_a_deadline_ends_the_wait_for_a_turn(place):
    async def main():
        first = place.ask("first", size=5)
        soon = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(DeadlineError):
            await place.ask("late", size=5, deadline=soon)
        place.gate.set()
        await first

    asyncio.run(main())
    assert place.order == ["first"]


def test_what_a_job_raises_is_raised_to_who_asked_and_the_next_goes_on(place):
    def refuse():
        raise TemplateError("no such role")

    async def main():
        with pytest.raises(TemplateError):
            await place.workers.run(refuse, num_characters=5, request_id="r", caller=Caller())
        place.gate.set()
        return await place.ask("next", size=5)

    assert asyncio.run(main()) == "next"


def test_texts_that_wait_together_are_read_without_the_loop_in_between(place):
    async def main():
        started, go_on = threading.Event(), threading.Event()

        def read_slowly():
            started.set()
            go_on.wait(30)
            return "slow"

        first = place.ask("first", size=5)
        await asyncio.sleep(0)
        slow = asyncio.ensure_future(
            place.workers.run(read_slowly, num_characters=1, request_id="slow", caller=Caller())
        )
        others = [place.ask(name, size=50) for name in ("second", "third")]
        await asyncio.sleep(0)
        place.gate.set()
        await until(started.is_set)
        go_on.set()
        deadline = time.monotonic() + 30
        while len(place.order) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)  # the loop does nothing meanwhile
        assert place.order == ["first", "second", "third"]
        return await asyncio.gather(first, slow, *others)

    assert asyncio.run(main()) == ["first", "slow", "second", "third"]


def test_threads_take_short_turns_while_texts_are_read_and_no_longer(place):
    usual = sys.getswitchinterval()

    async def main():
        waiting = [place.ask(name, size=5) for name in ("first", "second")]
        await asyncio.sleep(0)
        during = sys.getswitchinterval()
        place.gate.set()
        await asyncio.gather(*waiting)
        return during

    assert asyncio.run(main()) == pytest.approx(min(usual, 0.001))
    assert sys.getswitchinterval() == usual


def test_a_tenant_whose_line_never_empties_does_not_make_the_server_remember_its_past(place):
    async def main():
        place.gate.set()
        waiting = [place.ask(f"{i}", size=SHORT_CHARACTERS, tenant="a") for i in range(3)]
        for number in range(3, 3000):
            waiting.append(place.ask(f"{number}", size=SHORT_CHARACTERS, tenant="a"))
            await waiting.pop(0)
        line = place.workers._short._tenants["a"]
        remembered = len(line._last_finish)
        await asyncio.gather(*waiting)
        return remembered

    assert asyncio.run(main()) < 2000
