"""Pieces of prompts beside answers are cut to a time, by what steps were seen to take."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from zse.engine.prompt_budget import (
    CROWD_SHARE,
    CROWD_STEPS,
    LEAST_SECONDS,
    LONGEST_SECONDS,
    STRETCH,
    THRONG_STEPS,
    PromptBudget,
)

MOST, LONG = 8192, 2048
CROWD = CROWD_STEPS * LONG


def new_budget() -> PromptBudget:
    return PromptBudget(MOST, LONG)


def seen(plain: dict[int, float], token_seconds: float) -> PromptBudget:
    budget = new_budget()
    for rows, seconds in plain.items():
        budget.note(rows, 0, seconds)
        budget.note(rows, 4096, seconds + 4096 * token_seconds)
    return budget


def beside(budget: PromptBudget, rows: int, prompts: int = 1, tokens: int = 500) -> int:
    return budget.tokens_beside(rows, prompts, tokens)


SLOW = {4: 1.0, 64: 1.0}, 0.01


def test_nothing_is_cut_where_nobody_waits() -> None:
    assert beside(new_budget(), 0) == MOST
    assert beside(seen({8: 0.002}, 2e-6), 0) == MOST


@pytest.mark.parametrize("rows", [1, 8, 100, 256])
def test_a_step_with_a_prompt_takes_no_longer_than_nobody_sees(rows: int) -> None:
    plain, token_seconds = 0.001 + rows * 5e-5, 2.5e-6
    tokens = beside(seen({rows: plain}, token_seconds), rows)
    allowed = max(STRETCH * plain, LEAST_SECONDS)
    assert LONG < tokens < MOST
    assert allowed * 0.9 < plain + tokens * token_seconds <= allowed


@pytest.mark.parametrize("budget", [new_budget(), seen(*SLOW)], ids=["unknown", "slow"])
def test_a_piece_and_the_rows_beside_it_are_as_many_as_a_device_computes_well(
    budget: PromptBudget,
) -> None:
    for rows in (2, 60, 256):
        assert beside(budget, rows) + rows == LONG // 2


def test_as_many_prompts_as_answers_are_read_in_pieces_twice_as_long() -> None:
    budget = seen(*SLOW)
    assert beside(budget, 4, prompts=3, tokens=900) + 4 == LONG // 2
    assert beside(budget, 4, prompts=4, tokens=900) + 4 == LONG


def test_a_crowd_is_read_in_pieces_a_little_longer_than_else() -> None:
    budget = seen(*SLOW)
    assert beside(budget, 64, prompts=9, tokens=CROWD) + 64 == LONG * CROWD_SHARE
    assert beside(budget, 64, prompts=127, tokens=CROWD) + 64 == LONG * CROWD_SHARE
    assert beside(budget, 64, prompts=9, tokens=CROWD - 1) + 64 == LONG // 2


def test_very_many_prompts_are_read_in_whole_pieces_whoever_answers() -> None:
    budget, throng = seen(*SLOW), THRONG_STEPS * LONG
    assert beside(budget, 64, prompts=65, tokens=throng) + 64 == LONG
    assert beside(budget, 64, prompts=65, tokens=throng - 1) + 64 == LONG * CROWD_SHARE


def test_a_crowd_that_holds_up_few_is_read_for_as_long_as_a_glance() -> None:
    assert beside(seen({8: 0.002}, 1e-6), 8, prompts=16, tokens=CROWD) == MOST  # nobody sees it
    quick, slow = seen({8: 0.002}, 2e-5), seen({8: 0.002}, 3e-5)
    assert beside(quick, 8, prompts=16, tokens=CROWD) == (LONGEST_SECONDS - 0.002) / 2e-5 // 64 * 64
    assert beside(slow, 8, prompts=16, tokens=CROWD) == LONG - 8
    assert beside(new_budget(), 8, prompts=16, tokens=CROWD) == LONG - 8


def test_a_piece_and_the_rows_beside_it_are_as_many_as_fill_the_device() -> None:
    def whole_hundreds(most_rows: int) -> int:
        return most_rows // 100 * 100

    budget = PromptBudget(MOST, LONG, whole_hundreds)
    assert beside(budget, 2) + 2 == 1000
    assert beside(budget, 64, prompts=9, tokens=CROWD) + 64 == 1200
    assert beside(budget, 5000) == LONG // 4
    budget.note(64, 0, 0.006)
    budget.note(64, 4096, 0.006 + 4096 * 5e-6)
    assert beside(budget, 64) + 64 == 2000  # of 2,048 that nobody sees


def test_what_a_late_host_saw_of_steps_is_not_taken_for_what_they_take() -> None:
    clock = SimpleNamespace(at=0.0)
    budget = PromptBudget(MOST, LONG, now=lambda: clock.at)
    budget.note(32, 0, 0.003)
    budget.note(32, 1024, 0.003 + 1024 * 1.5e-5)
    before = {rows: beside(budget, rows) for rows in (1, 32, 128)}
    for _ in range(50):  # a step of 3 ms each, whose end is seen when the next is launched: 12 ms
        steps = [[SimpleNamespace(num_tokens=32, kind="decode")] for _ in range(2)]
        budget.submitted(steps[0], clock.at)
        budget.submitted(steps[1], clock.at + 0.011)
        clock.at += 0.012
        budget.done(steps[0], was_over=True)
        clock.at += 0.001
        budget.done(steps[1])  # it seems to have taken 1 ms
    assert {rows: beside(budget, rows) for rows in (1, 32, 128)} == before


def test_many_answers_leave_prompts_something() -> None:
    assert beside(seen(*SLOW), 5000) == LONG // 4
    assert PromptBudget(100, LONG).tokens_beside(99, 1, 500) == 25


def test_rows_that_were_never_measured_take_what_the_nearest_did() -> None:
    budget = seen({4: 0.010, 128: 0.030}, 2e-6)
    assert beside(budget, 3) == beside(budget, 4)
    assert beside(budget, 300) == beside(budget, 128) > beside(budget, 4)


def test_one_step_that_was_interrupted_changes_little() -> None:
    budget = seen({8: 0.01}, 2e-6)
    before = beside(budget, 8)
    budget.note(8, 4096, 30.0)
    assert beside(budget, 8) >= before * 0.85


def test_a_device_that_becomes_slower_is_followed() -> None:
    budget = seen({8: 0.01}, 2e-6)
    for _ in range(40):
        budget.note(8, 4096, 0.01 + 4096 * 1e-4)
    assert beside(budget, 8) == LONG // 2 - 8


def test_of_two_steps_in_flight_the_later_one_begins_when_the_earlier_one_ends() -> None:
    clock = SimpleNamespace(at=0.0)
    budget = PromptBudget(MOST, LONG, now=lambda: clock.at)
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
    assert beside(budget, 1) == 6000 // 64 * 64


def test_whatever_is_measured_an_answer_is_never_left_without_a_piece_or_given_too_much() -> None:
    draw = random.Random(5)
    budget = new_budget()
    for _ in range(500):
        budget.note(draw.randint(0, 300), draw.choice([0, 5, 2300, 4000]), draw.random() ** 8)
        rows, prompts, tokens = (draw.randint(0, most) for most in (300, 300, 9000))
        assert LONG // 4 <= budget.tokens_beside(rows, prompts, tokens) <= MOST
