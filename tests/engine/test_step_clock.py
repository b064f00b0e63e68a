"""When the engine's steps were, told to the requests that ask."""

import pytest

from zse.engine import step_clock
from zse.engine.chunks import ScheduledChunk
from zse.engine.sequence import Sequence
from zse.engine.step_clock import StepClock, StepLog


@pytest.fixture(params=["engine", "ahead"])
def harness(request):
    return request.getfixturevalue(request.param)


def test_a_request_is_told_of_each_step_that_it_took_part_in(harness):
    core, log = harness.core(max_batch_tokens=4), StepLog()
    core.add_request(harness.request("a", range(10), max_tokens=3, steps=log))
    harness.run_to_end(core)
    told = [(step.reads_prompt, step.num_tokens) for step in log.steps]
    assert told == [(True, 4), (True, 4), (True, 2), (False, 1), (False, 1)]
    assert log.num_steps == 5


def test_steps_follow_each_other_though_two_are_in_flight(harness):
    core, log = harness.core(), StepLog()
    core.add_request(harness.request("a", range(4), max_tokens=8, steps=log))
    harness.run_to_end(core)
    times = [moment for step in log.steps for moment in (step.began, step.ended)]
    assert times == sorted(times)


def test_a_step_with_several_choices_of_a_request_is_one_step(harness):
    core, log = harness.core(), StepLog()
    core.add_request(harness.request("a", range(4), max_tokens=6, n=3, steps=log))
    harness.run_to_end(core)
    assert max(step.num_tokens for step in log.steps if not step.reads_prompt) == 3


def test_each_request_is_told_of_its_own_steps(harness):
    core, first, second = harness.core(), StepLog(), StepLog()
    core.add_request(harness.request("a", range(4), max_tokens=5, steps=first))
    core.add_request(harness.request("b", range(4, 8), max_tokens=2, steps=second))
    core.add_request(harness.request("c", range(8, 12), max_tokens=9))
    harness.run_to_end(core)
    assert (first.num_steps, second.num_steps) == (5, 2)
    assert first.steps[:2] == second.steps


def test_where_nobody_asks_no_clock_is_read(harness, monkeypatch):
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: pytest.fail("a clock was read"))
    core = harness.core()
    core.add_request(harness.request("a", range(4), max_tokens=3))
    harness.run_to_end(core)


def test_a_request_is_told_of_the_first_steps_and_of_how_many_there_were(monkeypatch, engine):
    monkeypatch.setattr(step_clock, "MAX_STEPS", 2)
    core, log = engine.core(), StepLog()
    core.add_request(engine.request("a", range(4), max_tokens=6, steps=log))
    engine.run_to_end(core)
    assert (len(log.steps), log.num_steps) == (2, 6)


def test_a_step_begins_when_it_was_submitted_or_the_one_before_it_ended(engine):
    moments = iter(range(10))
    clock, log = StepClock(now=lambda: next(moments)), StepLog()
    request = engine.request("a", [1], steps=log)
    sequence = Sequence(
        request=request, index=0, seed=0, max_tokens=1, end_token_ids=frozenset(), rank=(0, 0)
    )
    chunk = ScheduledChunk(sequence, start=0, num_tokens=1, kind="decode", num_wanted=1)
    one, two = [chunk], [chunk]
    clock.submitted(one)  # at 1
    clock.submitted(two)  # at 2
    clock.done(one)  # at 3
    clock.done(two)  # at 4
    clock.submitted(one)  # at 5
    clock.done(one)  # at 6
    assert [(step.began, step.ended) for step in log.steps] == [(1, 3), (3, 4), (5, 6)]
