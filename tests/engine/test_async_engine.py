from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from zse.engine.async_engine import AsyncEngine
from zse.engine.encoder_core import EncoderCore
from zse.engine.inbox import UnreadBounds
from zse.engine.request import SamplingParams
from zse.errors import (
    ContextLengthError,
    DeadlineError,
    EngineError,
    ShuttingDownError,
    UnreadOutputError,
)
from zse.options import load_options

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(params=["plain", "ahead"])
def engine(request, engine, ahead):
    return ahead if request.param == "ahead" else engine


@pytest.fixture
def make_engine(engine, letters):
    made = []

    def make(runner=None, **options):
        runner = runner or engine.Runner(num_blocks=64, max_position=4096)
        made.append(AsyncEngine(engine.core(runner, **options), letters))
        return made[-1]

    yield make
    for async_engine in made:
        async_engine.close()


def greedy(**fields):
    fields.setdefault("max_tokens", 8)
    return SamplingParams(temperature=0.0, **fields)


async def collect(async_engine, prompt=PROMPT, params=None, **fields):
    stream = async_engine.generate(prompt, params or greedy(), **fields)
    return [delta async for delta in stream]


def text_of(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_stream_delivers_the_text_of_the_tokens(engine, letters, make_engine):
    deltas = asyncio.run(collect(make_engine()))
    assert text_of(deltas) == letters.decode(engine.expected_tokens(PROMPT, greedy()))
    assert [d.finish_reason for d in deltas][-1] == "length"


def test_concurrent_streams_get_their_own_answers(engine, letters, make_engine):
    prompts = [[i, i + 1] for i in range(20)]

    async def main():
        async_engine = make_engine(max_sequences=5)
        return await asyncio.gather(*(collect(async_engine, prompt) for prompt in prompts))

    for prompt, deltas in zip(prompts, asyncio.run(main()), strict=True):
        assert text_of(deltas) == letters.decode(engine.expected_tokens(prompt, greedy()))


def test_all_choices_arrive_on_one_stream(make_engine):
    params = SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=4)
    deltas = asyncio.run(collect(make_engine(), params=params))
    assert {d.index for d in deltas} == {0, 1, 2}
    assert sum(d.finish_reason is not None for d in deltas) == 3


def test_a_stop_text_ends_the_choice_in_the_engine_too(engine, letters, make_engine):
    answer = letters.decode(engine.expected_tokens(PROMPT, greedy(max_tokens=3)))

    async def main():
        async_engine = make_engine()
        deltas = await collect(async_engine, params=greedy(max_tokens=50, stop=answer[1:3]))
        await until(lambda: async_engine.stats().num_running == 0)
        return deltas, async_engine.stats()

    deltas, stats = asyncio.run(main())
    assert text_of(deltas) == answer[:1]
    assert deltas[-1].finish_reason == "stop"
    # A device that looks ahead has begun the fourth before the third is known.
    assert stats.generated_tokens == 3


def test_a_choice_that_met_a_stop_text_is_not_computed_while_the_others_go_on(
    engine, letters, make_engine
):
    params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=50)
    first, second = (
        letters.decode(engine.expected_tokens(PROMPT, params, index=index)) for index in (0, 1)
    )
    stop = first[1:3]
    assert stop not in second
    params = replace(params, stop=stop)

    async def main():
        async_engine = make_engine()
        return await collect(async_engine, params=params), async_engine.stats()

    deltas, stats = asyncio.run(main())
    assert (text_of(deltas, 0), text_of(deltas, 1)) == (first[:1], second)
    assert stats.generated_tokens == 3 + 50


def test_closing_the_generator_cancels_the_request(engine, make_engine):
    async def main():
        async_engine = make_engine(engine.Runner(num_blocks=1200, max_position=4096))
        async with aclosing(async_engine.generate(PROMPT, greedy(max_tokens=4000))) as stream:
            async for _ in stream:
                break
        await until(lambda: async_engine.stats().num_running == 0)
        return async_engine.num_active

    assert asyncio.run(main()) == 0


def test_a_cancelled_task_cancels_its_request(engine, make_engine):
    async def main():
        async_engine = make_engine(engine.Runner(num_blocks=1200, max_position=4096))
        task = asyncio.create_task(collect(async_engine, params=greedy(max_tokens=4000)))
        await until(lambda: async_engine.stats().num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: async_engine.stats().num_running == 0)

    asyncio.run(main())


def test_a_request_that_never_fits_is_refused_at_once(make_engine):
    async_engine = make_engine(max_context=10)
    with pytest.raises(ContextLengthError):
        async_engine.check(PROMPT, greedy())
    with pytest.raises(ContextLengthError):
        asyncio.run(collect(async_engine))
    assert async_engine.num_active == 0


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


def test_text_that_cannot_be_made_fails_its_own_request_only(make_engine, letters, monkeypatch):
    async def main():
        async_engine = make_engine()
        good = asyncio.create_task(collect(async_engine))
        await good
        monkeypatch.setattr("zse.engine.output.ChoiceText.push", lambda *_: 1 / 0, raising=True)
        with pytest.raises(EngineError, match="ZeroDivisionError"):
            await collect(async_engine)
        monkeypatch.undo()
        return await collect(async_engine), good.result()

    after, before = asyncio.run(main())
    assert text_of(after) == text_of(before)


def gated_runner(engine):
    """A runner that waits for its gate before each step."""
    gate, runner = threading.Event(), engine.Runner()
    submit = runner.submit
    runner.submit = lambda batch: (gate.wait(), submit(batch))[1]
    return gate, runner


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
        stream = async_engine.generate(PROMPT, greedy(max_tokens=4000))
        await anext(stream)
        return stream

    loop = asyncio.new_event_loop()
    abandoned = loop.run_until_complete(leave())
    loop.close()
    deltas = asyncio.run(collect(async_engine, [9, 9]))
    assert len(text_of(deltas)) == 8
    asyncio.run(until_idle(async_engine))
    del abandoned


async def until_idle(async_engine):
    await until(lambda: async_engine.stats().num_running == 0)


def test_a_lower_limit_lets_one_run_at_a_time_and_the_old_one_gives_the_same_answers(
    make_engine, engine
):
    runner = engine.Runner(num_blocks=64, max_position=4096)
    made = make_engine(runner)

    async def ask_four():
        async def ask(last):
            deltas = [delta async for delta in made.generate([*PROMPT, last], greedy())]
            return [token for delta in deltas for token in delta.token_ids]

        return await asyncio.gather(*map(ask, range(4)))

    made.limit_running(1)
    assert made.max_running == 1
    alone = asyncio.run(ask_four())
    assert max(len(batch.chunks) for batch in runner.batches) == 1
    made.limit_running(10**9)
    assert made.max_running == made._core.options.max_sequences
    together = asyncio.run(ask_four())
    assert max(len(batch.chunks) for batch in runner.batches) > 1
    assert alone == together


def test_a_choice_is_over_when_the_engine_is_done_with_it_whether_or_not_it_is_read(make_engine):
    async def main():
        ended = []
        async_engine = make_engine()
        stream = async_engine.generate(
            PROMPT, greedy(n=3, max_tokens=40), on_choice_end=lambda: ended.append(1)
        )
        await anext(stream)
        await until(lambda: len(ended) == 3)  # and nobody has read on
        rest = [delta async for delta in stream]
        return sum(delta.finish_reason is not None for delta in rest), len(ended)

    assert asyncio.run(main()) == (3, 3)


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
            stream = async_engine.generate(PROMPT, greedy(max_tokens=7000))
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
    assert last == first


def test_a_tenants_crowd_does_not_hold_up_another_tenants_request(engine, make_engine):
    gate, runner = gated_runner(engine)

    async def main():
        async_engine = make_engine(runner, max_sequences=1)
        order = []

        async def ask(tenant):
            await collect(async_engine, tenant=tenant)
            order.append(tenant)

        tasks = [asyncio.create_task(ask("crowd")) for _ in range(5)]
        await until(lambda: async_engine.num_active == 5)
        tasks.append(asyncio.create_task(ask("other")))
        await until(lambda: async_engine.num_active == 6)
        gate.set()
        await asyncio.gather(*tasks)
        return order.index("other")

    assert asyncio.run(main()) <= 2


def test_an_engine_of_an_encoder_that_is_asked_nothing_rests_too(letters, monkeypatch):
    monkeypatch.setattr("zse.engine.async_engine._BUSY_SECONDS", 0.01)
    rested = threading.Event()
    runner = SimpleNamespace(rest=lambda free_blocks: rested.set(), close=lambda: None)
    async_engine = AsyncEngine(EncoderCore(runner, load_options()), letters)
    assert rested.wait(30)
    assert async_engine.is_healthy
    async_engine.close()


def test_an_engine_that_is_asked_nothing_for_a_while_gives_back_what_nobody_may_ask_for_again(
    engine, make_engine, monkeypatch
):
    monkeypatch.setattr("zse.engine.async_engine._BUSY_SECONDS", 0.01)
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
