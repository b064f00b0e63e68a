"""Steps planned and submitted while the one before them runs."""

from __future__ import annotations

import pytest

from zse.backends.types import PENDING_TOKEN
from zse.errors import DeviceError


def pending_in(batch):
    return [chunk.sequence_slot for chunk in batch.chunks if PENDING_TOKEN in chunk.token_ids]


def test_decode_goes_on_with_tokens_that_only_the_device_knows(ahead):
    runner = ahead.Runner(num_blocks=32)
    core = ahead.core(runner)
    requests = [ahead.request(f"r{i}", range(i + 1), max_tokens=9) for i in range(3)]
    for request in requests:
        core.add_request(request)
    events = ahead.run_to_end(core)
    assert [len(pending_in(batch)) for batch in runner.batches] == [0] + [3] * 8
    for request in requests:
        want = ahead.expected_tokens(request.prompt_token_ids, request.params)
        assert ahead.tokens_of(events, request.request_id) == want


def test_the_next_step_is_in_flight_when_tokens_are_handed_out(ahead):
    runner = ahead.Runner()
    core = ahead.core(runner)
    core.add_request(ahead.request("a", [1, 2], max_tokens=4))
    in_flight = []
    while core.has_work:
        core.step()
        in_flight.append(len(runner.in_flight))
    assert in_flight == [1, 1, 1, 0]


def test_an_end_by_length_is_foreseen(ahead):
    core = ahead.core()
    core.add_request(ahead.request("a", range(5), max_tokens=6))
    ahead.run_to_end(core)
    assert core.stats().computed_tokens == 5 + 6 - 1


def test_what_is_computed_past_an_end_token_is_dropped(ahead):
    alone = ahead.expected_tokens([5, 6], ahead.request("x", [5, 6], max_tokens=3).params)
    runner = ahead.Runner()
    core = ahead.core(runner, eos_token_ids=(alone[1],), prefix_cache=False)
    core.add_request(ahead.request("a", [5, 6], max_tokens=30))
    events = [*core.step(), *core.step()]
    assert [event.token_id for event in events] == alone[:2]
    assert events[-1].finish_reason == "stop"
    assert core.stats().kv_blocks_used > 0, "the step in flight still writes them"
    core.check_consistency()
    assert core.has_work
    assert core.step() == []
    assert core.stats().kv_blocks_used == 0
    assert core.stats().generated_tokens == 2
    assert not core.has_work


def test_blocks_of_an_aborted_request_go_to_nobody_while_a_step_uses_them(ahead):
    runner = ahead.Runner(num_blocks=4, block_size=4)
    core = ahead.core(runner, prefix_cache=False)
    core.add_request(ahead.request("a", range(8), max_tokens=8))
    core.step()
    held = set(runner.in_flight[0].tables[0])
    core.abort("a")
    core.abort("a")
    core.add_request(ahead.request("b", range(9), max_tokens=2))
    events = core.step()
    assert [(e.request_id, e.finish_reason) for e in events] == [("a", "abort")]
    assert all(not held & set(step.tables[0]) for step in runner.in_flight)
    assert len(ahead.tokens_of(ahead.run_to_end(core), "b")) == 2


def test_an_arrival_joins_the_step_after_the_one_in_flight(ahead):
    runner = ahead.Runner(num_blocks=32)
    core = ahead.core(runner)
    core.add_request(ahead.request("a", [1], max_tokens=20))
    core.step()
    core.add_request(ahead.request("b", [2, 3], max_tokens=3))
    core.step()
    assert [list(chunk.token_ids) for chunk in runner.batches[-1].chunks] == [[-1], [2, 3]]


def test_equal_prompts_share_blocks_whose_step_is_still_in_flight(ahead):
    runner = ahead.Runner(num_blocks=32)
    core = ahead.core(runner, max_batch_tokens=13)
    for name in "ab":
        core.add_request(ahead.request(name, range(13), max_tokens=2))
    events = ahead.run_to_end(core)
    assert {e.cached_tokens for e in events if e.request_id == "b"} == {12}


def test_blocks_filled_by_pending_tokens_are_reused_once_these_are_known(ahead):
    core = ahead.core()
    core.add_request(ahead.request("a", range(6), max_tokens=7))
    answer = ahead.tokens_of(ahead.run_to_end(core), "a")
    core.add_request(ahead.request("b", [*range(6), *answer, 1, 2], max_tokens=1))
    assert ahead.run_to_end(core)[0].cached_tokens == 12


def test_equal_blocks_filled_at_the_same_time_become_one(ahead):
    core = ahead.core(ahead.Runner(num_blocks=32))
    for name in "ab":
        core.add_request(ahead.request(name, range(4), max_tokens=14))
    events = []
    while core.has_work:
        events += core.step()
        core.check_consistency()
    assert ahead.tokens_of(events, "a") == ahead.tokens_of(events, "b")
    assert core.stats().kv_blocks_cached == 4


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.1}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}],
)
def test_a_penalty_does_not_wait_for_the_token_before(ahead, penalty):
    runner = ahead.Runner()
    core = ahead.core(runner)
    request = ahead.request("a", [1, 2], max_tokens=5, **penalty)
    core.add_request(request)
    events = ahead.run_to_end(core)
    assert runner.num_pending == 4
    want = ahead.expected_tokens([1, 2], request.params)
    assert ahead.tokens_of(events, "a") == want


def test_nobody_is_preempted_while_a_step_is_in_flight(ahead, monkeypatch):
    runner = ahead.Runner(num_blocks=6, block_size=2)
    core = ahead.core(runner, prefix_cache=False)
    scheduler = core._scheduler
    preempt = scheduler._preempt
    in_flight = []

    def watched(sequence):
        in_flight.append(len(runner.in_flight))
        assert sequence.num_pending == 0
        preempt(sequence)

    monkeypatch.setattr(scheduler, "_preempt", watched)
    requests = [ahead.request(f"r{i}", [i], max_tokens=10) for i in range(3)]
    for request in requests:
        core.add_request(request)
    events = ahead.run_to_end(core)
    assert in_flight
    assert set(in_flight) == {0}
    assert runner.num_pending > 0
    for request in requests:
        want = ahead.expected_tokens(request.prompt_token_ids, request.params)
        assert ahead.tokens_of(events, request.request_id) == want


def test_minimum_lengths_seeds_and_choices_hold_with_pending_tokens(ahead):
    core = ahead.core(ahead.Runner(vocab_size=5, num_blocks=64), eos_token_ids=(0, 1))
    request = ahead.request("a", [2, 2], max_tokens=40, min_tokens=9, n=3, seed=4, temperature=1)
    core.add_request(request)
    events = ahead.run_to_end(core)
    for index in range(3):
        want = ahead.expected_tokens([2, 2], request.params, index=index, vocab_size=5, eos=(0, 1))
        assert ahead.tokens_of(events, "a", index) == want


def test_closing_waits_for_the_step_in_flight(ahead):
    runner = ahead.Runner()
    core = ahead.core(runner)
    core.add_request(ahead.request("a", range(9), max_tokens=9))
    core.step()
    core.close()
    assert runner.in_flight == []
    assert runner.is_closed
    assert not core.has_work
    assert core.stats().kv_blocks_used == 0


def test_a_device_that_fails_in_flight_fails_the_step_and_can_still_be_closed(ahead, monkeypatch):
    runner = ahead.Runner()
    core = ahead.core(runner)
    core.add_request(ahead.request("a", range(9), max_tokens=9))
    core.step()

    def fail(_):
        raise DeviceError("the device is gone")

    monkeypatch.setattr(runner, "answers_of", fail)
    with pytest.raises(DeviceError, match="gone"):
        core.step()
    core.close()
    assert runner.is_closed
