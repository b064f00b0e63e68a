from __future__ import annotations

import pytest

from zse.engine.intake import rank_of
from zse.engine.request import Request, SamplingParams
from zse.engine.sequence import Sequence
from zse.engine.waiting_line import WaitingLine


def waiting(arrival, *, tenant="", priority=0, weight=1.0, step=0, num_tokens=4):
    tokens = list(range(num_tokens))
    return Sequence(
        request=Request(
            request_id=str(arrival),
            prompt_token_ids=tokens,
            params=SamplingParams(),
            priority=priority,
            tenant=tenant,
            weight=weight,
        ),
        index=0,
        seed=0,
        max_tokens=10,
        end_token_ids=frozenset(),
        rank=rank_of(priority=priority, arrival=arrival, step=step, aging_steps=10),
        prompt_token_ids=tokens,
        token_ids=tokens,
    )


@pytest.fixture
def line_of():
    def make(*sequences):
        line = WaitingLine()
        for sequence in sequences:
            line.add(sequence)
        return line

    return make


def drain(line):
    """Serve everybody, one after the other, each charged for its prompt."""
    order = []
    while line:
        sequence = line.first()
        line.take(sequence)
        line.charge(sequence, sequence.num_tokens)
        order.append(int(sequence.request.request_id))
    return order


def test_of_one_tenant_the_first_to_come_goes_first(line_of):
    assert drain(line_of(waiting(1), waiting(0), waiting(2))) == [0, 1, 2]


def test_a_tenant_with_a_long_line_does_not_hold_up_another(line_of):
    crowd = [waiting(i, tenant="crowd") for i in range(5)]
    assert drain(line_of(*crowd, waiting(5, tenant="other"))) == [0, 5, 1, 2, 3, 4]


def test_turns_are_counted_in_tokens_not_in_requests(line_of):
    long = [waiting(i, tenant="long", num_tokens=30) for i in range(2)]
    short = [waiting(i, tenant="short", num_tokens=10) for i in range(10, 15)]
    assert drain(line_of(*long, *short)) == [0, 10, 11, 12, 1, 13, 14]


def test_a_class_goes_before_a_lower_one_until_that_has_waited_long_enough(line_of):
    old = waiting(0, step=0)
    urgent = waiting(1, priority=1, step=9)
    late = waiting(2, priority=1, step=11)
    assert drain(line_of(old, urgent)) == [1, 0]
    assert drain(line_of(old, late)) == [0, 2]


def test_a_sequence_leaves_the_line_wherever_it_stands(line_of):
    sequences = [waiting(i, tenant=str(i % 2)) for i in range(6)]
    line = line_of(*sequences)
    for sequence in (sequences[3], sequences[0]):
        line.remove(sequence)
    assert len(line) == 4
    assert drain(line) == [2, 1, 4, 5]


def test_who_waits_for_its_leaders_prompt_lets_its_tenants_others_pass(line_of):
    leader = waiting(0, tenant="a")
    follower = waiting(1, tenant="a")
    follower.leader = leader
    leader.table = object()
    line = line_of(follower, waiting(2, tenant="a"))
    assert line.first().request.request_id == "2"
    leader.num_computed = leader.num_tokens
    assert line.first() is follower
