"""An engine that nobody asks anything makes steps ready that may come."""

from __future__ import annotations

import asyncio
import itertools
import threading

from async_asking import PROMPT, collect, greedy, text_of


def answered(engine, core):
    core.add_request(engine.request("a", [3, 4, 5, 6], max_tokens=3))
    engine.run_to_end(core)
    return core


def test_a_core_prepares_behind_its_first_answer_alone(engine):
    core, left = engine.core(), [True, True, True, False]
    core.runner.prepare_idle = iter(left).__next__
    assert not core.prepare_idle()
    answered(engine, core)
    assert [core.prepare_idle() for _ in left] == left


def test_a_core_whose_runner_prepares_nothing_has_nothing_to_prepare(engine):
    assert not answered(engine, engine.core()).prepare_idle()


def test_in_a_pause_all_is_prepared_by_the_engines_thread(engine, make_engine):
    runner, threads, is_done = engine.Runner(), [], threading.Event()

    def prepare():
        threads.append(threading.current_thread().name)
        if len(threads) == 4:
            is_done.set()
        return len(threads) < 4

    runner.prepare_idle = prepare
    asyncio.run(collect(make_engine(runner)))
    assert is_done.wait(60)
    assert threads == ["zse-engine"] * 4


def test_who_asks_while_things_are_prepared_waits_for_one_of_them(engine, letters, make_engine):
    runner, pieces = engine.Runner(), itertools.count()
    has_begun, goes_on = threading.Event(), threading.Event()
    runner.prepare_idle = lambda: (next(pieces), has_begun.set(), not goes_on.wait(60))[2]

    async def main():
        async_engine = make_engine(runner)
        await collect(async_engine)
        await asyncio.to_thread(has_begun.wait, 60)
        asked = asyncio.ensure_future(collect(async_engine))
        while async_engine._thread.commands.empty():
            await asyncio.sleep(0.001)
        count = next(pieces)
        goes_on.set()
        return count, await asked

    count, deltas = asyncio.run(main())
    assert count == 1  # the one that had begun
    assert text_of(deltas) == letters.decode(engine.expected_tokens(PROMPT, greedy()))
