"""The reference of routing equals what transformers' families do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from zse.kernels.route.reference import group_by_expert, route


@dataclass
class Rules:
    num_experts: int = 16
    experts_per_token: int = 4
    scoring: str = "softmax"
    num_groups: int = 1
    groups_per_token: int = 1
    scores_in_group: int = 1
    normalizes_weights: bool = False
    weight_scale: float = 1.0


def random_logits(rows: int = 9, experts: int = 16) -> torch.Tensor:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(rows)) * 3


def test_a_softmax_over_all_experts_and_then_the_best() -> None:
    logits = random_logits()
    weights, chosen = logits.softmax(-1).topk(4)
    found_chosen, found_weights = route(logits, Rules())
    assert torch.equal(found_chosen, chosen.int())
    torch.testing.assert_close(found_weights, weights)
    normalized = route(logits, Rules(normalizes_weights=True))[1]
    torch.testing.assert_close(normalized, weights / weights.sum(-1, keepdim=True))


def test_a_softmax_over_the_chosen_equals_a_normalized_softmax() -> None:
    logits = random_logits()
    chosen, weights = route(logits, Rules(scoring="softmax_chosen"))
    other, normalized = route(logits, Rules(normalizes_weights=True))
    assert torch.equal(chosen, other)
    torch.testing.assert_close(weights, normalized)


def test_a_bias_moves_the_choice_but_not_the_weights() -> None:
    logits, bias = random_logits(), torch.linspace(1, -1, 16)
    rules = Rules(scoring="sigmoid", weight_scale=2.5)
    chosen, weights = route(logits, rules, selection_bias=bias)
    assert not torch.equal(chosen, route(logits, rules)[0])
    assert torch.equal(chosen.long(), (logits.sigmoid() + bias).topk(4).indices)
    torch.testing.assert_close(weights, logits.sigmoid().gather(1, chosen.long()) * 2.5)


def test_equal_scores_choose_the_smaller_numbers() -> None:
    for scoring in ("softmax", "softmax_chosen", "sigmoid"):
        chosen, _ = route(torch.zeros(2, 16), Rules(scoring=scoring))
        assert chosen.tolist() == [[0, 1, 2, 3]] * 2


def test_sigmoids_that_are_all_zero_give_weights_of_zero() -> None:
    rules = Rules(scoring="sigmoid", normalizes_weights=True)
    assert route(torch.full((1, 16), -200.0), rules)[1].tolist() == [[0.0] * 4]


@pytest.mark.parametrize("scores_in_group", [1, 2])
def test_only_the_best_groups_are_chosen_from(scores_in_group: int) -> None:
    logits = random_logits(40)
    rules = Rules(
        scoring="sigmoid", num_groups=4, groups_per_token=2, scores_in_group=scores_in_group
    )
    chosen, _ = route(logits, rules)
    for row, experts in zip(logits.sigmoid(), chosen.long(), strict=True):
        best = row.view(4, 4).topk(scores_in_group).values.sum(-1).topk(2).indices
        allowed = torch.isin(torch.arange(16) // 4, best)
        expected = torch.where(allowed, row, -1.0).topk(4).indices
        assert torch.equal(experts, expected)


def test_each_experts_scale_multiplies_its_weights() -> None:
    logits, scale = random_logits(), torch.linspace(0.5, 2, 16)
    chosen, weights = route(logits, Rules())
    scaled = route(logits, Rules(), expert_scale=scale)[1]
    torch.testing.assert_close(scaled, weights * scale[chosen.long()])


def test_pairs_are_grouped_by_expert_in_their_order() -> None:
    order, starts = group_by_expert(torch.tensor([[2, 0], [0, 3], [2, 1]]).int(), 5)
    assert order.tolist() == [1, 2, 5, 0, 4, 3]
    assert starts.tolist() == [0, 2, 3, 5, 6, 6]
