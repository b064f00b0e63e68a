"""Pieces of prompts beside answers are cut to a time, by what steps were seen to take."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from zse.engine.prompt_budget import LEAST_SECONDS, LEAST_TOKENS, STRETCH, PromptBudget

MOST = 8192


def seen(plain: dict[int, float], token_seconds: float) -> PromptBudget:
    budget = PromptBudget(MOST)
    for rows, seconds in plain.items():
        budget.note(rows, 0, seconds)
        budget.note(rows, 4096, seconds + 4096 * token_seconds)
    return budget


def test_nothing_is_cut_where_nobody_waits() -> None:
    assert PromptBudget(MOST).tokens_beside(0) == MOST
    assert seen({8: 0.002}, 2e-6).tokens_beside(0) == MOST


def test_before_anything_was_measured_pieces_beside_answers_are_short() -> None:
    assert PromptBudget(MOST).tokens_beside(9) == LEAST_TOKENS
    assert PromptBudget(100).tokens_beside(9) == 100


@pytest.mark.parametrize("rows", [1, 8, 100, 256])
def test_a_step_with_a_prompt_takes_no_longer_than_it_may(rows: int) -> None:
    plain, token_seconds = 0.001 + rows * 5e-5, 2.5e-6
    tokens = seen({rows: plain}, token_seconds).tokens_beside(rows)
    allowed = max(STRETCH * plain, LEAST_SECONDS)
    assert LEAST_TOKENS < tokens < MOST
    assert allowed * 0.9 < plain + tokens * token_seconds <= allowed


def test_pieces_have_a_least_length_however_slow_the_device_is() -> None:
    assert seen({1: 0.1}, 0.01).tokens_beside(1) == LEAST_TOKENS


def test_rows_that_were_never_measured_take_what_the_nearest_did() -> None:
    budget = seen({4: 0.010, 128: 0.030}, 2e-6)
    assert budget.tokens_beside(3) == budget.tokens_beside(4)
    assert budget.tokens_beside(300) == budget.tokens_beside(128) > budget.tokens_beside(4)


def test_one_step_that_was_interrupted_changes_little() -> None:
    budget = seen({8: 0.01}, 2e-6)
    before = budget.tokens_beside(8)
    budget.note(8, 4096, 30.0)
    assert budget.tokens_beside(8) >= before * 0.85


def test_a_device_that_becomes_slower_is_followed() -> None:
    budget = seen({8: 0.01}, 2e-6)
    for _ in range(40):
        budget.note(8, 4096, 0.01 + 4096 * 1e-4)
    assert budget.tokens_beside(8) == LEAST_TOKENS


def test_of_two_steps_in_flight_the_later_one_begins_when_the_earlier_one_ends() -> None:
    clock = SimpleNamespace(at=0.0)
    budget = PromptBudget(MOST, now=lambda: clock.at)
    steps = [[SimpleNamespace(num_tokens=1, kind="decode")] for _ in range(3)]
    prompt = [*steps[2], SimpleNamespace(num_tokens=5000, kind="prefill")]
    budget.submitted(steps[0], 0.0)
    budget.submitted(steps[1], 0.001)
    clock.at = 0.010
    budget.done(steps[0])
    budget.submitted(prompt, 0.010)
    clock.at = 0.020
    budget.done(steps[1])
    clock.at = 0.040
    budget.done(prompt)
    # A step takes 10 ms and 5,000 tokens 10 more; a step may take 2.2 times its own 10.
    assert budget.tokens_beside(1) == 6000 // 64 * 64


def test_whatever_is_measured_an_answer_is_never_left_without_a_piece_or_given_too_much() -> None:
    draw = random.Random(5)
    budget = PromptBudget(MOST)
    for _ in range(500):
        budget.note(draw.randint(0, 300), draw.choice([0, 5, 2300, 4000]), draw.random() ** 8)
        assert LEAST_TOKENS <= budget.tokens_beside(draw.randint(0, 300)) <= MOST
