"""Sampling: truncation, penalties, seeds, log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zse.backends.torch.sampling import sample, uniform
from zse.kernels.lm_head_sample.row import SamplingRow

LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.3, 0.2, 0.05]))


def drawn(count: int = 400, logits: torch.Tensor = LOGITS, **values: Any) -> dict[int, float]:
    """Return how often each token came out."""
    seen: dict[int, float] = {}
    for step in range(count):
        token = sample(logits, SamplingRow(seed=11, step=step, **values)).token_id
        seen[token] = seen.get(token, 0.0) + 1.0 / count
    return seen


def greedy(logits: torch.Tensor = LOGITS, **values: Any) -> int:
    return sample(logits, SamplingRow(temperature=0.0, **values)).token_id


def test_greedy_takes_the_lowest_id_on_a_tie() -> None:
    assert greedy() == 1
    tied = torch.zeros(1000)
    tied[[7, 300, 999]] = 4.0
    assert greedy(tied) == 7


def test_a_row_is_greedy_below_a_hundred_thousandth_of_a_degree_and_drawn_from_there_on() -> None:
    tied = torch.tensor([0.0, 4.0, 4.0])
    assert set(drawn(20, tied, temperature=9e-6)) == {1}
    assert set(drawn(20, tied, temperature=1.1e-5)) == {1, 2}


def test_draws_follow_the_distribution() -> None:
    found = drawn(4000)
    for token, probability in enumerate([0.05, 0.4, 0.3, 0.2, 0.05]):
        assert found[token] == pytest.approx(probability, abs=0.03)


def test_truncation_keeps_the_right_tokens() -> None:
    assert set(drawn(top_k=2)) == {1, 2}
    assert set(drawn(top_k=1)) == {1}
    assert set(drawn(top_p=0.39)) == {1}
    assert set(drawn(top_p=0.65)) == {1, 2}
    assert set(drawn(min_p=0.4)) == {1, 2, 3}
    assert set(drawn(top_k=3, top_p=0.5)) == {1, 2}
    assert set(drawn(top_k=100)) == {0, 1, 2, 3, 4}


def test_temperature_sharpens_and_flattens() -> None:
    assert drawn(temperature=0.2)[1] > drawn()[1] > drawn(temperature=5.0)[1]


def test_a_seed_and_step_fix_the_token() -> None:
    rows = [SamplingRow(seed=5, step=step) for step in range(30)]
    assert [sample(LOGITS, r).token_id for r in rows] == [sample(LOGITS, r).token_id for r in rows]
    assert len({uniform(seed, step) for seed in range(20) for step in range(20)}) == 400
    assert all(0.0 <= uniform(seed, 0) < 1.0 for seed in range(1000))


def test_penalties_move_used_tokens_down() -> None:
    assert greedy(output_token_ids=[1], presence_penalty=1.0) == 2
    assert greedy(output_token_ids=[1], frequency_penalty=0.1) == 1
    assert greedy(output_token_ids=[1] * 9, frequency_penalty=0.1) == 2
    assert greedy(prompt_token_ids=[1], presence_penalty=1.0) == 1
    assert greedy(prompt_token_ids=[1], repetition_penalty=2.0) == 2
    positive = torch.tensor([3.0, 2.0, -1.0])
    assert greedy(positive, prompt_token_ids=[0, 0], repetition_penalty=2.0) == 1


def test_bias_and_bans_apply_to_greedy_and_to_draws() -> None:
    assert greedy(logit_bias={4: 100.0, 99: 5.0}) == 4
    assert greedy(banned_token_ids={1, 2}) == 3
    assert set(drawn(banned_token_ids=[1, 2, 3])) == {0, 4}


def test_logprobs_are_the_models_own() -> None:
    row = SamplingRow(temperature=0.0, logprobs=2, logit_bias={3: 50.0})
    found = sample(LOGITS, row)
    assert found.token_id == 3
    assert found.logprob == pytest.approx(float(torch.tensor(0.2).log()), abs=1e-5)
    assert [token for token, _ in found.top] == [1, 2]
    assert found.top[0][1] == pytest.approx(float(torch.tensor(0.4).log()), abs=1e-5)
    alone = sample(LOGITS, SamplingRow(temperature=0.0, logprobs=0))
    assert alone.logprob is not None
    assert list(alone.top) == []
    assert sample(LOGITS, SamplingRow(temperature=0.0)).logprob is None
    assert len(sample(LOGITS, SamplingRow(logprobs=99)).top) == 5


def test_the_logits_are_not_changed() -> None:
    before = LOGITS.clone()
    drawn(5, presence_penalty=1.0, output_token_ids=[1], banned_token_ids=[0], logit_bias={2: 1.0})
    assert torch.equal(LOGITS, before)
