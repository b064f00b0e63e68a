"""Drafts out of prompts, answers, and what a tenant was answered before."""

from __future__ import annotations

import pytest

from zse.engine.drafting.drafter import MOST_DRAFTS_EACH, NO_OFFER
from zse.engine.drafting.suffix_drafter import SuffixDrafter
from zse.engine.request import Request
from zse.engine.sequence import Sequence


def sequence_of(prompt, **own):
    prompt = list(prompt)
    return Sequence(
        request=Request(request_id="r", prompt_token_ids=prompt, **own),
        index=0,
        seed=0,
        max_tokens=1000,
        end_token_ids=frozenset(),
        rank=(0, 0),
        prompt_token_ids=prompt,
        token_ids=list(prompt),
    )


@pytest.fixture
def drafter():
    return SuffixDrafter()


def drafts_of(drafter, sequence, most=MOST_DRAFTS_EACH):
    (offer,) = drafter.offers([sequence])
    if not offer.most:
        return []
    return drafter.propose([(sequence, min(most, offer.most))])[0]


def answer(drafter, sequence, tokens):
    for token in tokens:
        drafter.offers([sequence])
        sequence.append(token)


def test_what_followed_the_same_tokens_in_the_prompt_is_guessed(drafter):
    sequence = sequence_of([*range(20), 90, 3, 4])
    assert drafts_of(drafter, sequence) == []
    sequence.append(5)
    assert drafts_of(drafter, sequence) == [*range(6, 16)]
    assert drafts_of(drafter, sequence, 3) == [6, 7, 8]


def test_too_few_tokens_give_no_guess(drafter):
    assert drafter.offers([sequence_of([1, 1])]) == [NO_OFFER]


def test_a_guess_that_stands_makes_the_next_one_likelier_and_a_wrong_one_less(drafter):
    right, wrong = (sequence_of([*range(40), 90, 3, 4, 5]) for _ in range(2))
    before = drafter.offers([right, wrong])
    answer(drafter, right, range(6, 20))
    for other in range(91, 97):
        answer(drafter, wrong, [other, 3, 4, 5])
    after = drafter.offers([right, wrong])
    assert after[0].chance > before[0].chance
    assert after[1].chance < before[1].chance


def test_a_long_prompt_is_indexed_over_several_steps_and_guesses_nothing_wrong_meanwhile(drafter):
    prompt = [*range(5000), 4000, 4001, 4002]
    sequence = sequence_of(prompt)
    found = [drafts_of(drafter, sequence, 2) for _ in range(4)]
    assert found == [[], [4003, 4004], [4003, 4004], [4003, 4004]]


def test_what_a_tenant_was_answered_is_guessed_for_its_next_request(drafter):
    first = sequence_of([1, 2], tenant="a")
    answer(drafter, first, range(10, 30))
    drafter.forget(first)
    again = [
        drafts_of(drafter, sequence_of([70, 12, 13, 14], **who), 3)
        for who in (
            {"tenant": "a"},
            {"tenant": "b"},
            {"tenant": ""},
            {"tenant": "a", "cache_salt": "x"},
        )
    ]
    assert again == [[15, 16, 17], [], [], []]
    assert drafts_of(drafter, sequence_of([26, 27, 28], tenant="a")) == [29]


def test_of_callers_without_a_key_nothing_is_kept(drafter):
    first = sequence_of([1, 2])
    answer(drafter, first, range(10, 30))
    drafter.forget(first)
    assert drafts_of(drafter, sequence_of([70, 12, 13, 14])) == []


def test_what_is_kept_of_answers_is_bounded(drafter):
    for number in range(100):
        sequence = sequence_of([1], tenant="a")
        drafter.offers([sequence])
        for i in range(999):
            sequence.append(number * 1000 + i)
        drafter.forget(sequence)
    assert drafts_of(drafter, sequence_of([99_500, 99_501, 99_502], tenant="a"), 1) == [99_503]
    assert drafts_of(drafter, sequence_of([500, 501, 502], tenant="a"), 1) == []
    for number in range(40):
        sequence = sequence_of([1], tenant=f"t{number}")
        answer(drafter, sequence, [1, 2])
        drafter.forget(sequence)
    assert drafts_of(drafter, sequence_of([99_500, 99_501, 99_502], tenant="a"), 1) == []


def test_a_sequence_that_was_never_told_of_can_be_forgotten(drafter):
    drafter.forget(sequence_of([1], tenant="a"))
    drafter.close()
    assert drafter.offers([sequence_of([1])]) == [NO_OFFER]
