from __future__ import annotations

import pytest

from zse.backends.types import FinishedStep, SampledToken
from zse.errors import (
    CapacityError,
    ContextLengthError,
    EngineError,
    InvalidParameterError,
    UsageError,
)


def finish_reasons(events):
    return {(e.request_id, e.index): e.finish_reason for e in events if e.finish_reason}


def test_one_request_gets_the_tokens_of_its_own_history(engine):
    core = engine.core()
    request = engine.request("a", [1, 2, 3, 4, 5], max_tokens=7)
    core.add_request(request)
    events = engine.run_to_end(core)
    assert engine.tokens_of(events, "a") == engine.expected_tokens([1, 2, 3, 4, 5], request.params)
    assert finish_reasons(events) == {("a", 0): "length"}


def test_a_batch_gives_each_request_the_answer_it_gets_alone(engine):
    core = engine.core(engine.Runner(num_blocks=64), max_batch_tokens=7, max_sequences=4)
    requests = [engine.request(f"r{i}", range(i, 3 * i + 2), max_tokens=9) for i in range(8)]
    for request in requests:
        core.add_request(request)
    events = engine.run_to_end(core)
    for request in requests:
        want = engine.expected_tokens(request.prompt_token_ids, request.params)
        assert engine.tokens_of(events, request.request_id) == want


def test_a_step_never_exceeds_the_token_budget(engine):
    runner = engine.Runner(num_blocks=64)
    core = engine.core(runner, max_batch_tokens=6, max_sequences=4)
    for i in range(6):
        core.add_request(engine.request(f"r{i}", range(20), max_tokens=3))
    engine.run_to_end(core)
    sizes = [sum(len(chunk.token_ids) for chunk in batch.chunks) for batch in runner.batches]
    assert max(sizes) == 6


def test_decode_goes_on_while_a_long_prompt_is_prefilled(engine):
    runner = engine.Runner(num_blocks=64)
    core = engine.core(runner, max_batch_tokens=5)
    core.add_request(engine.request("short", [1], max_tokens=30))
    core.step()
    core.add_request(engine.request("long", range(40), max_tokens=1))
    mixed = [e.request_id for _ in range(5) for e in core.step()]
    assert mixed == ["short"] * 5
    assert all(len(batch.chunks) == 2 for batch in runner.batches[1:])


def test_an_end_token_finishes_with_stop_and_is_marked(engine):
    first = engine.expected_tokens([5, 6], engine.request("x", [5, 6], max_tokens=3).params)
    core = engine.core(eos_token_ids=(first[1],))
    core.add_request(engine.request("a", [5, 6], max_tokens=30))
    events = engine.run_to_end(core)
    assert engine.tokens_of(events, "a") == first[:2]
    assert events[-1].finish_reason == "stop"
    assert events[-1].is_stop_token
    assert not events[0].is_stop_token


def test_ignore_eos_generates_past_the_end_token_but_not_past_a_stop_id(engine):
    alone = engine.expected_tokens([5, 6], engine.request("x", [5, 6], max_tokens=6).params)
    core = engine.core(eos_token_ids=(alone[1],))
    core.add_request(
        engine.request("a", [5, 6], max_tokens=30, ignore_eos=True, stop_token_ids=[alone[3]])
    )
    assert engine.tokens_of(engine.run_to_end(core), "a") == alone[:4]


def test_min_tokens_bans_end_tokens_until_it_is_reached(engine):
    core = engine.core(engine.Runner(vocab_size=3, num_blocks=64), eos_token_ids=(0, 1))
    request = engine.request("a", [2, 2], max_tokens=50, min_tokens=11)
    core.add_request(request)
    tokens = engine.tokens_of(engine.run_to_end(core), "a")
    assert tokens[:11] == [2] * 11
    assert tokens == engine.expected_tokens([2, 2], request.params, vocab_size=3, eos=(0, 1))


def test_an_end_token_that_the_model_does_not_have_is_never_banned(engine):
    runner = engine.Runner()
    core = engine.core(runner, eos_token_ids=(3, 97))
    core.add_request(engine.request("a", [2, 2], max_tokens=4, min_tokens=3))
    engine.run_to_end(core)
    banned = [set(row.banned_token_ids) for batch in runner.batches for (row,) in batch.sampling]
    assert banned[:3] == [{3}] * 3


def test_seeded_choices_differ_from_each_other_and_repeat(engine):
    answers = []
    for _ in range(2):
        core = engine.core()
        core.add_request(engine.request("a", [1, 2, 3], temperature=1.0, seed=7, n=3, max_tokens=6))
        events = engine.run_to_end(core)
        answers.append([engine.tokens_of(events, "a", index) for index in range(3)])
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0]}) == 3


def test_unseeded_requests_draw_a_seed_of_their_own(engine):
    core = engine.core()
    for name in ("a", "b"):
        core.add_request(engine.request(name, [1, 2, 3], temperature=1.0, max_tokens=8))
    events = engine.run_to_end(core)
    assert engine.tokens_of(events, "a") != engine.tokens_of(events, "b")


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_share_the_full_blocks_of_their_prompt(engine, prefix_cache):
    runner = engine.Runner(num_blocks=32)
    core = engine.core(runner, prefix_cache=prefix_cache)
    core.add_request(engine.request("a", range(13), n=4, max_tokens=2))
    core.step()
    core.step()
    tables = [chunk.block_table for chunk in runner.batches[-1].chunks]
    assert len(tables) == 4
    assert len({tuple(table[:3]) for table in tables}) == 1
    assert len({table[3] for table in tables}) == 4
    engine.run_to_end(core)


def test_the_computed_tokens_of_a_shared_prefix_are_reported_as_cached(engine):
    core = engine.core()
    core.add_request(engine.request("a", range(10), max_tokens=2))
    engine.run_to_end(core)
    core.add_request(engine.request("b", [*range(8), 50, 51], max_tokens=2))
    events = engine.run_to_end(core)
    assert {event.cached_tokens for event in events} == {8}
    stats = core.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (20, 8)


def test_an_answer_is_reused_as_the_prefix_of_the_next_turn(engine):
    core = engine.core()
    core.add_request(engine.request("a", range(6), max_tokens=7))
    answer = engine.tokens_of(engine.run_to_end(core), "a")
    core.add_request(engine.request("b", [*range(6), *answer, 1, 2], max_tokens=1))
    assert engine.run_to_end(core)[0].cached_tokens == 12


def test_a_whole_cached_prompt_still_computes_its_last_token(engine):
    core = engine.core()
    for name in ("a", "b"):
        core.add_request(engine.request(name, range(8), max_tokens=1))
        events = engine.run_to_end(core)
    assert events[0].cached_tokens == 4


def test_a_cache_salt_keeps_prefixes_apart(engine):
    core = engine.core()
    for salt in ("x", "y", "x"):
        core.add_request(engine.request("a", range(10), max_tokens=1, cache_salt=salt))
        events = engine.run_to_end(core)
        cached = events[0].cached_tokens
        assert cached == (8 if core.stats().prompt_tokens == 30 else 0)


def test_abort_frees_the_blocks_and_reports_once(engine):
    core = engine.core(prefix_cache=False)
    core.add_request(engine.request("a", range(10), max_tokens=20, n=2))
    core.step()
    core.step()
    core.abort("a")
    core.abort("a")
    assert core.stats().kv_blocks_used == 0
    events = core.step()
    assert [(e.index, e.token_id, e.finish_reason) for e in events] == [
        (0, None, "abort"),
        (1, None, "abort"),
    ]
    assert not core.has_work


def test_one_choice_can_be_aborted_while_the_others_go_on(engine):
    core = engine.core()
    core.add_request(engine.request("a", range(10), max_tokens=6, n=2))
    core.step()
    core.abort("a", 0)
    events = engine.run_to_end(core)
    assert finish_reasons(events) == {("a", 0): "abort", ("a", 1): "length"}
    assert len(engine.tokens_of(events, "a", 1)) == 6


def test_a_context_overflow_says_what_clients_look_for(engine):
    core = engine.core(max_context=40)
    with pytest.raises(ContextLengthError) as caught:
        core.add_request(engine.request("a", range(45), max_tokens=5))
    assert str(caught.value) == (
        "This model's maximum context length is 40 tokens. However, you requested 50 tokens "
        "(45 in the messages, 5 in the completion). Please reduce the length of the messages or "
        "completion. (context_length_exceeded)"
    )
    assert not core.has_work


def test_a_request_larger_than_the_pool_is_refused_and_one_that_just_fits_is_served(engine):
    core = engine.core(engine.Runner(num_blocks=3, block_size=4))
    assert core.capacity_tokens == 13
    with pytest.raises(CapacityError, match="maximum context length is 13 tokens"):
        core.add_request(engine.request("a", range(10), max_tokens=4))
    core.add_request(engine.request("b", range(10), max_tokens=3))
    assert len(engine.tokens_of(engine.run_to_end(core), "b")) == 3


def test_no_limit_generates_to_the_end_of_the_context(engine):
    core = engine.core(max_context=20)
    core.add_request(engine.request("a", range(15), max_tokens=None))
    assert len(engine.tokens_of(engine.run_to_end(core), "a")) == 5


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ([97], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1], {"logit_bias": {97: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (97,)}, "stop_token_ids"),
        ([1], {"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_token_ids_are_checked_against_the_vocabulary(engine, prompt, params, param):
    with pytest.raises(InvalidParameterError) as caught:
        engine.core().add_request(engine.request("a", prompt, **params))
    assert caught.value.param == param


def test_a_request_id_in_use_is_refused(engine):
    core = engine.core()
    core.add_request(engine.request("a", [1], max_tokens=3))
    with pytest.raises(UsageError, match="'a' is running already"):
        core.add_request(engine.request("a", [2], max_tokens=3))


def test_logprobs_travel_with_the_tokens(engine):
    core = engine.core()
    core.add_request(engine.request("a", [1], max_tokens=1, logprobs=2))
    (event,) = engine.run_to_end(core)
    assert event.logprob == engine.logprob_of([1, event.token_id])
    assert len(event.top) == 2


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "answered 0 chunks, expected 1"),
        ([[]], "sampled 0 tokens where 1 were asked for"),
        ([[SampledToken(1), SampledToken(2)]], "sampled 2 tokens where 1 were asked for"),
    ],
)
def test_a_runner_that_answers_too_little_or_too_much_is_an_error(engine, answers, message):
    runner = engine.Runner()
    runner.submit = lambda batch: FinishedStep(answers=answers)
    core = engine.core(runner)
    core.add_request(engine.request("a", [1], max_tokens=3))
    with pytest.raises(EngineError, match=message):
        core.step()


def test_drafts_that_are_answered_with_nothing_are_an_error(engine):
    runner = engine.Runner(most_accepted=0)
    core = engine.core(runner)
    core.add_request(engine.request("a", [1], max_tokens=5))
    core.step()
    core._scheduler.running[0].drafts = [2, 3]
    with pytest.raises(EngineError, match="sampled 0 tokens where 3 were asked for"):
        core.step()


def test_right_drafts_give_a_step_several_tokens_and_wrong_ones_cost_none(engine):
    runner = engine.Runner()
    core = engine.core(runner)
    request = engine.request("a", [5, 6], max_tokens=9, presence_penalty=1.0)
    core.add_request(request)
    want = engine.expected_tokens([5, 6], request.params)
    events = core.step()
    (sequence,) = core._scheduler.running
    sequence.drafts = [*want[1:4], 96, want[5]]
    events += core.step()
    assert engine.tokens_of(events, "a") == want[:5]
    assert runner.batches[-1].chunks[0].kind == "verify"
    assert sequence.num_computed == 2 + 4
    assert sequence.drafts == ()
    events += engine.run_to_end(core)
    assert engine.tokens_of(events, "a") == want
    assert core.stats().generated_tokens == 9


def test_what_was_answered_past_an_end_token_is_dropped(engine):
    want = engine.expected_tokens([5, 6], engine.request("x", [5, 6], max_tokens=6).params)
    core = engine.core(eos_token_ids=(want[2],))
    core.add_request(engine.request("a", [5, 6], max_tokens=6))
    events = core.step()
    core._scheduler.running[0].drafts = want[1:]
    events += core.step()
    assert engine.tokens_of(events, "a") == want[:3]
    assert events[-1].finish_reason == "stop"
    assert not core.has_work
    core.check_consistency()


def test_closing_frees_everything_and_closes_the_runner(engine):
    runner = engine.Runner()
    core = engine.core(runner)
    core.add_request(engine.request("a", range(9), max_tokens=3))
    core.step()
    core.close()
    assert runner.is_closed
    assert not core.has_work
    assert core.stats().kv_blocks_used == 0


def test_logits_cover_every_token_and_check_the_context(engine):
    core = engine.core(max_context=5)
    assert len(core.logits([1, 2, 3])) == 3
    with pytest.raises(ContextLengthError):
        core.logits(list(range(6)))


@pytest.mark.parametrize("name", ["max_batch_tokens", "max_sequences"])
def test_options_below_one_are_refused(engine, name):
    with pytest.raises(UsageError, match=name):
        engine.core(**{name: 0})


def test_no_more_sequences_run_at_once_than_there_are_states_for(engine):
    runner = engine.Runner(num_blocks=64)
    runner.most_sequences = 2
    core = engine.core(runner, max_sequences=4)
    for index in range(5):
        core.add_request(engine.request(f"r{index}", [index, 1], max_tokens=3))
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.stats().num_running)
    assert (core.options.max_sequences, most) == (2, 2)
