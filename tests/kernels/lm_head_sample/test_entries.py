"""A sequence's adjustments, kept from step to step, are those of its whole text."""

import random
from dataclasses import replace

import pytest

from zse.kernels.lm_head_sample.entries import AdjustmentHistory, adjustment_entries
from zse.kernels.lm_head_sample.row import SamplingRow

INFINITY = float("inf")


def by_token(row, index=0):
    entries = adjustment_entries([None] * index + [row])
    assert set(entries.rows) <= {index}
    assert len(set(entries.tokens)) == len(entries.tokens)
    values = zip(entries.penalties, entries.additions, strict=True)
    return dict(zip(entries.tokens, values, strict=True))


def test_repetition_counts_prompt_and_output_and_the_others_the_output_alone():
    row = SamplingRow(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        prompt_token_ids=[1, 2, 2],
        output_token_ids=[2, 3, 3],
        logit_bias={3: 4.0, 9: -1.0},
        banned_token_ids=(1, 7, 7),
    )
    assert by_token(row, index=2) == {
        1: (2.0, -INFINITY),
        2: (2.0, -0.75),
        3: (2.0, 3.0),
        9: (1.0, -1.0),
        7: (1.0, -INFINITY),
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_history_that_grows_equals_one_that_is_counted_anew(seed):
    draw = random.Random(seed)
    prompt = [draw.randrange(30) for _ in range(20)]
    output: list[int] = []
    row = SamplingRow(
        repetition_penalty=draw.choice([1.0, 1.3]),
        presence_penalty=draw.choice([0.0, 0.4]),
        frequency_penalty=draw.choice([0.0, 0.7]),
        prompt_token_ids=prompt,
        output_token_ids=output,
        logit_bias={draw.randrange(40): draw.random() for _ in range(3)},
    )
    for step in range(25):
        banned = (draw.randrange(40),) if step < 5 else ()
        later = row.at_step(step, banned)
        anew = replace(later, history=AdjustmentHistory())
        assert by_token(later) == by_token(anew)
        output.append(draw.randrange(40))


def test_a_row_with_other_lists_or_parameters_is_counted_anew():
    row = SamplingRow(repetition_penalty=2.0, prompt_token_ids=[1], output_token_ids=[2])
    assert by_token(row).keys() == {1, 2}
    assert by_token(replace(row, output_token_ids=[3])).keys() == {1, 3}
    assert by_token(replace(row, repetition_penalty=3.0)) == {1: (3.0, 0.0), 2: (3.0, 0.0)}


def test_a_row_without_adjustments_has_no_entries():
    assert by_token(SamplingRow(prompt_token_ids=[1], output_token_ids=[2])) == {}
