"""Drafts set between steps, on devices that answer at once and on ones that look ahead."""

from __future__ import annotations

import itertools

import pytest
from known_answers import KnownAnswers

from zse.engine.drafting.speculator import Speculator


@pytest.fixture(params=["engine", "ahead"])
def harness(request):
    return request.getfixturevalue(request.param)


def drafting_core(harness, **own):
    """A core for which every step takes as long, so that drafts always pay."""

    def answer_of(sequence):
        params = sequence.request.params
        return harness.expected_tokens(sequence.prompt_token_ids, params, index=sequence.index)

    drafter = KnownAnswers(answer_of, **own)
    clock = itertools.count()
    core = harness.core(
        harness.Runner(num_blocks=64),
        begin_speculation=lambda: Speculator(drafter, clock.__next__),
    )
    return core, drafter


def test_right_drafts_save_steps_and_change_no_answer(harness):
    core, drafter = drafting_core(harness, wrong_each=1000)
    prompts = [[1, 2], [3], [4, 5, 6]]
    requests = [
        harness.request(f"r{i}", prompt, max_tokens=40, n=1 + i) for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        core.add_request(request)
    events = harness.run_to_end(core)
    for request, index in ((requests[0], 0), (requests[2], 0), (requests[2], 2)):
        want = harness.expected_tokens(request.prompt_token_ids, request.params, index=index)
        assert harness.tokens_of(events, request.request_id, index) == want
    stats = core.stats()
    counts = stats.speculation
    assert stats.steps < 35  # of 41 without; drafts are made at three places of four
    assert counts.checks == len(drafter.observed)
    assert counts.draft_tokens == counts.accepted_tokens == sum(n for n, _ in drafter.observed)
    assert len(drafter.forgotten) == 6


def test_wrong_drafts_are_counted_and_change_no_answer(harness):
    core, _ = drafting_core(harness, wrong_each=3)
    request = harness.request("a", [1, 2], max_tokens=60)
    core.add_request(request)
    events = harness.run_to_end(core)
    want = harness.expected_tokens([1, 2], request.params)
    assert harness.tokens_of(events, "a") == want
    counts = core.stats().speculation
    assert 0 < counts.accepted_tokens < counts.draft_tokens
    told = events[-1].drafts
    assert (told.accepted, sum(told)) == (counts.accepted_tokens, counts.draft_tokens)


def test_what_is_sampled_with_a_seed_is_the_same_with_drafts(harness):
    core, _ = drafting_core(harness)
    request = harness.request("a", [1, 2], max_tokens=60, temperature=1.0, seed=7)
    core.add_request(request)
    assert harness.tokens_of(harness.run_to_end(core), "a") == harness.expected_tokens(
        [1, 2], request.params
    )
    assert core.stats().speculation.accepted_tokens > 0


def test_nothing_is_imported_and_nothing_guessed_before_a_first_token(engine):
    made = []

    def begin():
        made.append(core.stats().generated_tokens)
        return Speculator(KnownAnswers(lambda sequence: []))

    core = engine.core(begin_speculation=begin)
    core.add_request(engine.request("a", range(5), max_tokens=3))
    engine.run_to_end(core)
    assert made == [1]


def test_an_engine_that_closes_closes_the_drafter(harness):
    core, drafter = drafting_core(harness)
    core.add_request(harness.request("a", [1, 2], max_tokens=9))
    core.step()
    core.step()
    core.step()
    core.close()
    assert drafter.forgotten == []
    assert not core.has_work
