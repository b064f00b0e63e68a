from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from async_asking import PROMPT, asked, collect, gated_runner, greedy, text_of, until

from zse.engine.request import SamplingParams
from zse.errors import (
    ContextLengthError,
    EngineError,
)


@pytest.fixture(params=["plain", "ahead"])
def engine(request, engine, ahead):
    return ahead if request.param == "ahead" else engine


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
        async with aclosing(
            async_engine.generate(asked(PROMPT, greedy(max_tokens=4000)))
        ) as stream:
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


def test_a_lower_limit_lets_one_run_at_a_time_and_the_old_one_gives_the_same_answers(
    make_engine, engine
):
    runner = engine.Runner(num_blocks=64, max_position=4096)
    made = make_engine(runner)

    async def ask_four():
        async def ask(last):
            deltas = [delta async for delta in made.generate(asked([*PROMPT, last]))]
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
            asked(PROMPT, greedy(n=3, max_tokens=40)), on_choice_end=lambda: ended.append(1)
        )
        await anext(stream)
        await until(lambda: len(ended) == 3)  # and nobody has read on
        rest = [delta async for delta in stream]
        return sum(delta.finish_reason is not None for delta in rest), len(ended)

    assert asyncio.run(main()) == (3, 3)


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
