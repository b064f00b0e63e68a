from __future__ import annotations

import pytest

from zse.backends.types import MAX_DRAFTS
from zse.engine.intake import rank_of
from zse.engine.request import Request, SamplingParams
from zse.engine.scheduler import Scheduler
from zse.engine.sequence import Sequence
from zse.kv.cache import KVCache


def make_sequence(num_tokens, *, arrival=0, priority=0, leader=None, first_token=0):
    tokens = list(range(first_token, first_token + num_tokens))
    return Sequence(
        request=Request(request_id=str(arrival), prompt_token_ids=tokens, params=SamplingParams()),
        index=0,
        seed=0,
        max_tokens=10,
        end_token_ids=frozenset(),
        rank=rank_of(priority=priority, arrival=arrival, step=0, aging_steps=10),
        leader=leader,
        prompt_token_ids=tokens,
        token_ids=list(tokens),
    )


def run_step(scheduler):
    """One step of a model that always answers 7; returns (arrival, start, num_tokens) a chunk."""
    chunks = scheduler.schedule_step()
    scheduler.submitted(chunks)
    scheduler.done()
    for chunk in chunks:
        if chunk.num_wanted:
            chunk.sequence.answered(1, 1)
            chunk.sequence.append(7)
    return [(int(c.sequence.request.request_id), c.start, c.num_tokens) for c in chunks]


@pytest.fixture
def make_scheduler():
    def make(
        *, num_blocks=32, max_batch_tokens=8, max_sequences=4, most_drafts=MAX_DRAFTS, **cached
    ):
        cache = KVCache(num_blocks=num_blocks, block_size=4, **{"prefix_cache": False} | cached)
        return Scheduler(
            cache,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            most_drafts=most_drafts,
        )

    return make


def test_an_idle_scheduler_plans_nothing(make_scheduler):
    assert make_scheduler().schedule_step() == []


def test_a_long_prompt_is_cut_into_chunks_of_the_budget(make_scheduler):
    scheduler = make_scheduler()
    scheduler.add(make_sequence(19))
    assert [run_step(scheduler) for _ in range(4)] == [
        [(0, 0, 8)],
        [(0, 8, 8)],
        [(0, 16, 3)],
        [(0, 19, 1)],
    ]


def test_decodes_are_planned_before_prompts_in_arrival_order(make_scheduler):
    scheduler = make_scheduler()
    scheduler.add(make_sequence(2, arrival=0))
    run_step(scheduler)
    scheduler.add(make_sequence(9, arrival=1))
    scheduler.add(make_sequence(9, arrival=2))
    assert run_step(scheduler) == [(0, 2, 1), (1, 0, 7)]
    assert run_step(scheduler) == [(0, 3, 1), (1, 7, 2), (2, 0, 5)]


def test_no_more_sequences_run_than_there_are_slots(make_scheduler):
    scheduler = make_scheduler(max_sequences=2)
    for arrival in range(3):
        scheduler.add(make_sequence(1, arrival=arrival))
    run_step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 1)
    assert {s.slot for s in scheduler.running} == {0, 1}
    scheduler.remove(scheduler.running[0])
    assert run_step(scheduler) == [(1, 1, 1), (2, 0, 1)]


def test_the_first_in_line_is_not_overtaken_by_one_that_would_fit(make_scheduler):
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_sequence(6, arrival=0))
    run_step(scheduler)
    scheduler.add(make_sequence(12, arrival=1))
    scheduler.add(make_sequence(1, arrival=2))
    assert run_step(scheduler) == [(0, 6, 1)]
    assert len(scheduler.waiting) == 2


def test_nobody_is_admitted_who_would_be_preempted_as_soon_as_others_go_on(make_scheduler):
    scheduler = make_scheduler(num_blocks=4, max_batch_tokens=16)
    scheduler.add(make_sequence(7, arrival=0))
    run_step(scheduler)
    scheduler.add(make_sequence(8, arrival=1, first_token=50))  # as much as is left just now
    assert [run_step(scheduler) for _ in range(3)] == [[(0, 7, 1)], [(0, 8, 1)], [(0, 9, 1)]]
    assert scheduler.num_preemptions == 0
    scheduler.remove(scheduler.running[0])
    assert run_step(scheduler) == [(1, 0, 8)]


def test_a_preempted_sequence_is_computed_again_with_what_it_has_generated(make_scheduler):
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_sequence(7, arrival=0))
    run_step(scheduler)
    scheduler.add(make_sequence(3, arrival=1, first_token=50))
    steps = [run_step(scheduler) for _ in range(7)]
    assert scheduler.num_preemptions == 1
    assert steps[-1][-1] == (0, 13, 1)
    scheduler.remove(scheduler.running[0])
    (again,) = run_step(scheduler)
    assert (again[0], again[1]) == (1, 0)
    assert again[2] > 3


def test_a_choice_waits_for_its_leaders_prompt_and_then_computes_only_its_tail(make_scheduler):
    scheduler = make_scheduler()
    leader = make_sequence(10, arrival=0)
    scheduler.add(leader)
    scheduler.add(make_sequence(10, arrival=1, leader=leader))
    scheduler.add(make_sequence(3, arrival=2))
    assert run_step(scheduler) == [(0, 0, 8)]
    assert run_step(scheduler) == [(0, 8, 2), (2, 0, 3)]
    assert run_step(scheduler) == [(0, 10, 1), (2, 3, 1), (1, 8, 2)]


def test_drafts_are_checked_as_far_as_budget_length_and_blocks_allow(make_scheduler):
    def plan(num_drafts, **sizes):
        scheduler = make_scheduler(**sizes)
        sequence = make_sequence(7)
        scheduler.add(sequence)
        run_step(scheduler)
        sequence.drafts = [3] * num_drafts
        (chunk,) = scheduler.schedule_step()
        return chunk.kind, chunk.num_tokens, chunk.num_wanted

    assert plan(0) == ("decode", 1, 1)
    assert plan(3) == ("verify", 4, 4)
    assert plan(20) == ("verify", 8, 8)  # the budget: its own next token and 7 drafts
    assert plan(20, max_batch_tokens=64) == ("verify", 9, 9)  # one of 10 tokens is there already
    assert plan(3, num_blocks=2) == ("decode", 1, 1)  # drafts take nobody's blocks


@pytest.mark.parametrize("most_drafts", [0, 1])
def test_drafts_that_the_device_has_no_states_for_are_dropped(make_scheduler, most_drafts):
    scheduler = make_scheduler(num_checkpoints=2, most_drafts=most_drafts)
    sequence = make_sequence(7)
    scheduler.add(sequence)
    run_step(scheduler)
    sequence.drafts = [3, 3]
    assert run_step(scheduler) == [(0, 7, 1 + most_drafts)]
    assert sequence.drafts == ()


def test_blocks_are_given_ahead_to_no_more_drafts_than_the_next_step_checks(make_scheduler):
    scheduler = make_scheduler(max_batch_tokens=8)
    for arrival in range(2):
        scheduler.add(make_sequence(2, arrival=arrival, first_token=50 * arrival))
    run_step(scheduler)
    first, second = scheduler.running
    assert scheduler.takes_drafts(first, 4)
    assert not scheduler.takes_drafts(second, 3)  # 8 tokens, of which both have one without drafts
    assert scheduler.takes_drafts(second, 2)
    run_step(scheduler)
    assert scheduler.takes_drafts(second, 3)


def test_a_sequence_whose_drafts_are_being_checked_sits_the_next_step_out(make_scheduler):
    scheduler = make_scheduler()
    for arrival in range(2):
        scheduler.add(make_sequence(2, arrival=arrival, first_token=50 * arrival))
    run_step(scheduler)
    drafting, other = scheduler.running
    drafting.drafts = [3, 4]
    chunks = scheduler.schedule_step()
    scheduler.submitted(chunks)
    assert [chunk.kind for chunk in chunks] == ["verify", "decode"]
    ahead = scheduler.schedule_ahead()
    assert [chunk.sequence for chunk in ahead] == [other]
    scheduler.submitted(ahead)
    scheduler.done()
    for sequence, num_wanted in ((drafting, 3), (other, 1)):
        sequence.answered(num_wanted, 1)
        sequence.append(9)
    assert (drafting.num_computed, drafting.num_tokens, drafting.num_remaining) == (3, 4, 1)
    assert [chunk.sequence for chunk in scheduler.schedule_ahead()] == [drafting, other]


def test_where_most_sequences_have_drafts_checked_nobody_goes_ahead_of_them(make_scheduler):
    scheduler = make_scheduler(max_sequences=3, max_batch_tokens=16)
    for arrival in range(3):
        scheduler.add(make_sequence(2, arrival=arrival, first_token=50 * arrival))
    run_step(scheduler)
    for drafting in scheduler.running[:2]:
        drafting.drafts = [3, 4]
    chunks = scheduler.schedule_step()
    scheduler.submitted(chunks)
    assert [chunk.kind for chunk in chunks] == ["verify", "verify", "decode"]
    assert scheduler.schedule_ahead() == []


def test_waiting_outweighs_priority_after_the_aging_steps():
    def rank(**values):
        return rank_of(arrival=0, aging_steps=10, **values)

    assert rank(priority=1, step=9) > rank(priority=0, step=0)
    assert rank(priority=1, step=11) < rank(priority=0, step=0)


def test_of_two_equal_arrivals_the_first_goes_first():
    ranks = [rank_of(priority=0, arrival=i, step=3, aging_steps=10) for i in range(3)]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize(("more", "pieces"), [(64, [319]), (65, [255, 65])])
def test_the_last_few_tokens_of_a_prompt_are_no_step_of_their_own(make_scheduler, more, pieces):
    scheduler = make_scheduler(num_blocks=200, max_batch_tokens=4096)
    scheduler.add(make_sequence(4))
    run_step(scheduler)
    scheduler.add(make_sequence(255 + more, arrival=1, first_token=9))
    found = [{who: n for who, _, n in run_step(scheduler)}[1] for _ in pieces]
    assert found == pieces


def test_a_crowd_that_comes_while_one_answers_is_read_in_long_pieces(make_scheduler):
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=4096, max_sequences=9)
    scheduler.add(make_sequence(4))
    run_step(scheduler)
    for arrival in range(1, 4):
        scheduler.add(make_sequence(100, arrival=arrival, first_token=100 * arrival))
    assert sum(n for who, _, n in run_step(scheduler) if who) == 255 + 45  # the last ends here, too


def test_the_last_tokens_of_a_prompt_wait_for_the_step_of_the_one_behind_it(make_scheduler):
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=4096)
    scheduler.add(make_sequence(4))
    run_step(scheduler)
    for arrival, length in ((1, 530), (2, 300)):
        scheduler.add(make_sequence(length, arrival=arrival, first_token=1000 * arrival))
    found = [{who: n for who, _, n in run_step(scheduler) if who} for _ in range(3)]
    assert found == [{1: 255}, {1: 255}, {1: 20, 2: 235}]
