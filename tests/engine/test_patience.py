"""A plan waits for requests that are on their way, as long as the device has enough to do."""

import asyncio
from types import SimpleNamespace

import pytest
from async_asking import collect, until

from zse.engine.patience import SAFETY, SPARE_SECONDS, WRITING_SECONDS, Patience
from zse.engine.prompt_budget import PromptBudget


class Clock:
    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


def chunk(kind, num_tokens):
    return SimpleNamespace(kind=kind, num_tokens=num_tokens)


PROMPT = [chunk("decode", 1), chunk("prefill", 1000)]
ANSWERS = [chunk("decode", 1)]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    """A device that takes 10 ms for answers, and 10 us for each token of a prompt."""
    budget = PromptBudget(8192, 2048, now=clock)
    budget.note(1, 0, 0.010)
    budget.note(0, 4000, 0.040)
    return budget


def patience_after(budget, clock, host_seconds):
    patience = Patience(budget)
    for seconds in host_seconds:
        clock.at += seconds
        patience.note(PROMPT, seconds)
    return patience


def test_it_ends_when_the_host_must_begin(budget, clock):
    patience = patience_after(budget, clock, [0.002])
    budget.submitted(PROMPT, clock.at)
    assert patience.seconds_for(PROMPT, has_prompts=False) == pytest.approx(
        0.020 - SPARE_SECONDS - SAFETY * 0.002
    )
    clock.at += 0.010
    assert patience.seconds_for(PROMPT, has_prompts=False) == pytest.approx(
        0.010 - SPARE_SECONDS - SAFETY * 0.002
    )
    clock.at += 0.010
    assert patience.seconds_for(PROMPT, has_prompts=False) < 0


def test_a_host_that_was_slow_is_given_more_time_and_trusted_again_slowly(budget, clock):
    quick = patience_after(budget, clock, [0.002])
    slow = patience_after(budget, clock, [0.002, 0.008])
    better = patience_after(budget, clock, [0.002, 0.008, 0.002])
    budget.submitted(PROMPT, clock.at)
    left = [patience.seconds_for(PROMPT, has_prompts=False) for patience in (slow, better, quick)]
    assert left == sorted(left)
    assert left[2] - left[0] == pytest.approx(SAFETY * 0.006)


def test_there_is_none_where_answers_alone_are_computed_or_nothing_is_known(budget, clock):
    patience = patience_after(budget, clock, [0.0])
    budget.submitted(ANSWERS, clock.at)
    assert patience.seconds_for(ANSWERS, has_prompts=False) == 0
    unknown = PromptBudget(8192, 2048, now=clock)
    unknown.submitted(PROMPT, clock.at)
    assert Patience(unknown).seconds_for(PROMPT, has_prompts=False) < 0


def test_with_prompts_to_read_the_loop_alone_is_waited_for(budget, clock):
    patience = patience_after(budget, clock, [0.002])
    budget.submitted(ANSWERS, clock.at)
    clock.at += 0.010
    budget.done(ANSWERS)
    budget.submitted(PROMPT, clock.at)
    left = patience.seconds_for(PROMPT, has_prompts=True)
    assert left == pytest.approx(WRITING_SECONDS)
    assert left < patience.seconds_for(PROMPT, has_prompts=False)
    clock.at += WRITING_SECONDS
    assert patience.seconds_for(PROMPT, has_prompts=True) <= 0
    assert patience.seconds_for(ANSWERS, has_prompts=True) <= 0
    slow = patience_after(budget, clock, [0.030])  # which has to begin at once
    assert slow.seconds_for(PROMPT, has_prompts=True, is_writing=True) < 0


def test_while_tokens_are_written_the_plan_waits_as_long_as_the_device_has_enough(budget, clock):
    patience = patience_after(budget, clock, [0.002])
    budget.submitted(PROMPT, clock.at)
    most = patience.seconds_for(PROMPT, has_prompts=False)
    assert most > WRITING_SECONDS
    assert patience.seconds_for(PROMPT, has_prompts=True, is_writing=True) == most
    clock.at += WRITING_SECONDS
    assert patience.seconds_for(PROMPT, has_prompts=True, is_writing=True) > 0
    assert patience.seconds_for(PROMPT, has_prompts=True) <= 0  # written


def test_what_a_host_waited_for_its_turn_is_no_work(ahead):
    core = ahead.core(ahead.Runner(num_blocks=64), max_batch_tokens=64)
    patience, submit = core._pipeline._patience, core.runner.submit
    worked = [1.0]
    patience.worked = lambda: worked[0]

    def slowly(batch):
        worked[0] += 0.003
        core._scheduler.prompt_budget.now = lambda: 1e6  # the clock went on by days
        return submit(batch)

    core.runner.submit = slowly
    core.add_request(ahead.request("a", [3, 4, 5, 6], max_tokens=3))
    core.step()
    assert patience._host_seconds == pytest.approx(0.003)


def test_the_plan_of_a_core_waits_while_readers_are_busy(core, ahead):
    core.add_request(ahead.request("a", [3, 4, 5, 6], max_tokens=3))
    busy = [True]
    core.watch_readers(lambda: busy[0])
    assert core.step() == []
    core.add_request(ahead.request("b", [3, 4, 5, 6], max_tokens=3))
    assert core.patience_seconds > 1
    busy[0] = False
    assert core.patience_seconds <= WRITING_SECONDS


@pytest.fixture
def core(ahead):
    """An engine on a device that was seen to take a second for each token of a prompt."""
    core = ahead.core(ahead.Runner(num_blocks=64), max_batch_tokens=64)
    core._scheduler.prompt_budget.note(0, 2000, 2000.0)
    return core


def test_who_comes_while_a_prompt_is_read_is_in_the_next_step(core, ahead):
    first, second = (ahead.request(name, [3, 4, 5, 6], max_tokens=3) for name in "ab")
    core.add_request(first)
    assert core.step() == []
    assert core.patience_seconds > 1
    core.add_request(second)
    assert core.patience_seconds <= WRITING_SECONDS  # there is something to plan
    events = core.step()
    assert [event.request_id for event in events] == ["a"]
    assert [len(batch.chunks) for batch in core.runner.batches] == [1, 2]
    events += ahead.run_to_end(core)
    for request in (first, second):
        told = ahead.tokens_of(events, request.request_id)
        assert told == ahead.expected_tokens(request.prompt_token_ids, request.params)


def test_nobody_needs_to_wait(core, ahead):
    request = ahead.request("a", [3, 4, 5, 6], max_tokens=3)
    core.add_request(request)
    events = ahead.run_to_end(core)
    assert ahead.tokens_of(events, "a") == ahead.expected_tokens(
        request.prompt_token_ids, request.params
    )


def test_a_device_that_computes_at_once_has_nothing_to_wait_for(engine):
    core = engine.core()
    core._scheduler.prompt_budget.note(0, 2000, 2000.0)
    core.add_request(engine.request("a", [3, 4, 5, 6], max_tokens=3))
    assert core.step()
    assert core.patience_seconds == 0


def test_the_engines_thread_takes_requests_in_while_it_has_time(ahead, make_engine):
    engine = make_engine(ahead.Runner(num_blocks=64), max_batch_tokens=64)
    engine._core._scheduler.prompt_budget.note(0, 2000, 200.0)  # a prompt of 4 takes 0.4 s

    async def main():
        first = asyncio.create_task(collect(engine, [3, 4, 5, 6]))
        runner = engine._core.runner
        await until(lambda: len(runner.batches) == 1 or first.done())
        second = asyncio.create_task(collect(engine, [7, 8, 9, 10]))
        return [len(await task) for task in (first, second)], runner.batches

    numbers, batches = asyncio.run(main())
    assert min(numbers) > 0
    assert [len(batch.chunks) for batch in batches[:2]] == [1, 2]
