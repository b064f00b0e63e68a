"""Who makes way in the core: for blocks, for slots, and for whom."""

from __future__ import annotations

from zse.kv.windows import WindowGroup


def test_preemption_keeps_the_tokens_and_loses_no_request(engine):
    core = engine.core(engine.Runner(num_blocks=6, block_size=2), prefix_cache=False)
    requests = [engine.request(f"r{i}", [i], max_tokens=10) for i in range(3)]
    for request in requests:
        core.add_request(request)
    events = engine.run_to_end(core)
    assert core.stats().preemptions > 0
    for request in requests:
        want = engine.expected_tokens(request.prompt_token_ids, request.params)
        assert engine.tokens_of(events, request.request_id) == want


def test_the_lowest_priority_is_preempted_before_the_latest_arrival(engine):
    core = engine.core(engine.Runner(num_blocks=6, block_size=2), prefix_cache=False)
    core.add_request(engine.request("low", [1], max_tokens=10, priority=0))
    core.add_request(engine.request("high", [2], max_tokens=10, priority=5))
    events = engine.run_to_end(core)
    ends = [event.request_id for event in events if event.finish_reason]
    assert core.stats().preemptions == 1
    assert ends == ["high", "low"]


def test_a_high_priority_is_admitted_first_and_aging_ends_its_privilege(engine):
    core = engine.core(max_sequences=1, aging_steps=2)
    core.add_request(engine.request("runs", [1], max_tokens=5))
    core.add_request(engine.request("old", [2], max_tokens=1))
    for _ in range(4):
        core.step()
    core.add_request(engine.request("fresh", [3], max_tokens=1, priority=1))
    core.add_request(engine.request("urgent", [4], max_tokens=1, priority=9))
    ends = [e.request_id for e in engine.run_to_end(core) if e.finish_reason]
    assert ends == ["urgent", "runs", "old", "fresh"]


def test_an_urgent_request_takes_the_place_of_running_work_that_goes_on_afterwards(engine, ahead):
    for kind in (engine, ahead):
        core = kind.core(max_sequences=2)
        low = [kind.request(f"low-{i}", [i], max_tokens=30) for i in range(2)]
        for request in low:
            core.add_request(request)
        events = core.step() + core.step()
        core.add_request(kind.request("urgent", [9], max_tokens=1, priority=100))
        begun = core.stats().steps
        while not kind.tokens_of(events, "urgent"):
            events += core.step()
        assert core.stats().steps - begun <= 2  # one may be in flight
        events += kind.run_to_end(core)
        assert core.stats().preemptions == 1
        for request in low:
            want = kind.expected_tokens(request.prompt_token_ids, request.params)
            assert kind.tokens_of(events, request.request_id) == want


def test_running_work_makes_way_for_the_blocks_of_an_urgent_request_and_not_in_vain(engine):
    core = engine.core(engine.Runner(num_blocks=8, block_size=2), prefix_cache=False)
    core.add_request(engine.request("low", range(10), max_tokens=5))
    core.step()
    core.add_request(engine.request("urgent", range(10), max_tokens=1, priority=3))
    core.step()
    assert core.stats().preemptions == 1
    # What stands below it has too few blocks for it, so it is left alone.
    core = engine.core(engine.Runner(num_blocks=8, block_size=2), prefix_cache=False)
    core.add_request(engine.request("high", range(8), max_tokens=4, priority=5))
    core.add_request(engine.request("low", range(2), max_tokens=4))
    core.step()
    core.add_request(engine.request("urgent", range(12), max_tokens=1, priority=3))
    core.step()
    assert (core.stats().preemptions, core.stats().num_running) == (0, 2)
    engine.run_to_end(core)


def test_equals_do_not_take_each_others_place(engine):
    core = engine.core(max_sequences=1)
    core.add_request(engine.request("first", [1], max_tokens=9, priority=7))
    core.step()
    core.add_request(engine.request("second", [2], max_tokens=1, priority=7, tenant="other"))
    engine.run_to_end(core)
    assert core.stats().preemptions == 0


def test_who_matters_more_gets_the_window_of_one_who_matters_less(engine):
    group = WindowGroup(window=6, num_blocks=12, most_reserved=4)
    core = engine.core(
        engine.Runner(num_blocks=40, windows=[group]), max_batch_tokens=8, max_sequences=4
    )
    core.add_request(engine.request("low", range(9), max_tokens=20))
    core.step()
    core.add_request(engine.request("equal", range(20, 29), max_tokens=20))
    core.step()
    assert (core.stats().num_running, core.stats().num_waiting) == (1, 1)
    core.add_request(engine.request("high", range(40, 49), max_tokens=3, priority=1))
    events = engine.run_to_end(core)
    assert core.stats().preemptions == 1
    ends = [event.request_id for event in events if event.finish_reason]
    assert ends == ["high", "low", "equal"]
    for name, first, count in (("low", 0, 20), ("equal", 20, 20), ("high", 40, 3)):
        params = engine.request("", [0], max_tokens=count).params
        expected = engine.expected_tokens(range(first, first + 9), params)
        assert engine.tokens_of(events, name)[-2:] == expected[-2:]
