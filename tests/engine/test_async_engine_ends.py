from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import psutil
import pytest
from async_asking import PROMPT, asked, collect, gated_runner, greedy, text_of, until, until_idle

from zse.engine.async_engine import AsyncEngine
from zse.engine.encoder_core import EncoderCore
from zse.engine.inbox import UnreadBounds
from zse.errors import (
    DeadlineError,
    EngineError,
    ShuttingDownError,
    UnreadOutputError,
)
from zse.options import load_options


@pytest.fixture(params=["plain", "ahead"])
def engine(request, engine, ahead):
    return ahead if request.param == "ahead" else engine


def test_a_crash_fails_every_waiting_request_and_marks_the_engine_unhealthy(
    engine, make_engine, caplog
):
    runner = engine.Runner()

    async def main():
        async_engine = make_engine(runner)
        assert async_engine.is_healthy
        runner.error = RuntimeError("the device is gone")
        results = await asyncio.gather(
            *(collect(async_engine) for _ in range(3)), return_exceptions=True
        )
        with pytest.raises(EngineError, match="the device is gone"):
            await collect(async_engine)
        return async_engine, results

    async_engine, results = asyncio.run(main())
    assert [type(result) for result in results] == [EngineError] * 3
    assert not async_engine.is_healthy
    assert "the engine thread crashed" in caplog.text


def test_draining_lets_work_finish_and_refuses_new_requests(engine, make_engine):
    gate, runner = gated_runner(engine)

    async def main():
        async_engine = make_engine(runner)
        task = asyncio.create_task(collect(async_engine))
        await until(lambda: async_engine.num_active == 1)
        draining = asyncio.create_task(async_engine.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDownError):
            await collect(async_engine)
        gate.set()
        return await draining, await task

    is_empty, deltas = asyncio.run(main())
    assert is_empty
    assert deltas[-1].finish_reason == "length"


def test_draining_fails_what_outlasts_the_timeout(engine, make_engine):
    gate, runner = gated_runner(engine)

    async def main():
        async_engine = make_engine(runner)
        task = asyncio.create_task(collect(async_engine))
        await until(lambda: async_engine.num_active == 1)
        is_empty = await async_engine.drain(0)
        with pytest.raises(ShuttingDownError):
            await task
        gate.set()
        return is_empty

    assert asyncio.run(main()) is False


def test_closing_fails_what_is_in_flight_and_closes_the_runner(engine, make_engine):
    runner = engine.Runner(num_blocks=1200, max_position=4096)

    async def main():
        async_engine = make_engine(runner)
        task = asyncio.create_task(collect(async_engine, params=greedy(max_tokens=4000)))
        await until(lambda: async_engine.stats().num_running == 1)
        async_engine.close()
        async_engine.close()
        with pytest.raises(ShuttingDownError):
            await task

    asyncio.run(main())
    assert runner.is_closed


def test_a_loop_that_is_gone_does_not_disturb_the_others(engine, make_engine):
    async_engine = make_engine(engine.Runner(num_blocks=1200, max_position=4096))

    async def leave():
        stream = async_engine.generate(asked(PROMPT, greedy(max_tokens=4000)))
        await anext(stream)
        return stream

    loop = asyncio.new_event_loop()
    abandoned = loop.run_until_complete(leave())
    loop.close()
    deltas = asyncio.run(collect(async_engine, [9, 9]))
    assert len(text_of(deltas)) == 8
    asyncio.run(until_idle(async_engine))
    del abandoned


def test_a_request_ends_at_its_deadline_while_it_runs_and_while_it_waits(engine, make_engine):
    runner = engine.Runner(num_blocks=1200, max_position=4096)

    async def main():
        async_engine = make_engine(runner, max_sequences=1)
        ended = []
        soon = asyncio.get_running_loop().time() + 0.2
        calls = [
            collect(
                async_engine,
                params=greedy(max_tokens=4000),
                deadline=soon,
                on_choice_end=lambda: ended.append(1),
            )
            for _ in range(2)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: async_engine.stats().num_running == 0)
        assert [type(result) for result in results] == [DeadlineError] * 2
        assert len(ended) == 2
        assert len(await collect(async_engine)) > 0

    asyncio.run(main())


def test_an_answer_that_nobody_takes_ends_in_the_engine_at_its_bound(engine, letters):
    async def main():
        runner = engine.Runner(num_blocks=2000, max_position=8000)
        async_engine = AsyncEngine(engine.core(runner), letters, unread=UnreadBounds(each=300))

        async def read_late():
            stream = async_engine.generate(asked(PROMPT, greedy(max_tokens=7000)))
            await anext(stream)  # on a slow machine it has ended here already
            await until(lambda: async_engine.stats().num_running == 0)
            async for _ in stream:
                pass

        with pytest.raises(UnreadOutputError):
            await read_late()
        assert async_engine.stats().generated_tokens < 7000
        async_engine.close()

    asyncio.run(main())


def test_engines_that_come_and_go_in_a_loop_leave_no_descriptor(make_engine):
    async def main():
        counts = []
        for _ in range(3):
            async_engine = make_engine()
            await collect(async_engine)
            async_engine.close()
            await asyncio.sleep(0.01)
            del async_engine
            gc.collect()
            counts.append(psutil.Process().num_fds())
        return counts

    first, _, last = asyncio.run(main())
    assert last <= first


def test_an_engine_of_an_encoder_that_is_asked_nothing_rests_too(letters, monkeypatch):
    monkeypatch.setattr("zse.engine.engine_thread._BUSY_SECONDS", 0.01)
    rested = threading.Event()
    runner = SimpleNamespace(rest=lambda free_blocks: rested.set(), close=lambda: None)
    async_engine = AsyncEngine(EncoderCore(runner, load_options()), letters)
    assert rested.wait(30)
    assert async_engine.is_healthy
    async_engine.close()


def test_an_engine_that_is_asked_nothing_for_a_while_gives_back_what_nobody_may_ask_for_again(
    engine, make_engine, monkeypatch
):
    monkeypatch.setattr("zse.engine.engine_thread._BUSY_SECONDS", 0.01)
    runner = engine.Runner(num_blocks=64, max_position=4096)

    async def main():
        async_engine = make_engine(runner)
        await until(lambda: runner.given_back)
        before = runner.given_back
        deltas = await collect(async_engine)
        await until(lambda: runner.given_back is not before)
        kept = async_engine._core.cache.num_cached
        return text_of(deltas), before, runner.given_back, kept

    text, before, after, num_kept = asyncio.run(main())
    assert text
    assert before == [list(range(64))]
    assert num_kept > 0  # prefixes that a later request may begin with
    assert len(after[0]) == 64 - num_kept
