"""Reference of ``route``: plain, slow, obviously right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.kernels.route.rules import SIGMOID_FLOOR

if TYPE_CHECKING:
    from zse.kernels.route.rules import RoutingRules

TOLERANCE = 1e-5
"""Largest error over largest value of the weights of a kernel."""


def route(
    logits: torch.Tensor,
    rules: RoutingRules,
    *,
    selection_bias: torch.Tensor | None = None,
    expert_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the chosen experts, int32 [T, k], best first, and their weights, float32 [T, k].

    Args:
        logits: float32 [T, num_experts].
        rules: The numbers of the choice.
        selection_bias: float32 [num_experts], added to the scores for the choice alone.
        expert_scale: float32 [num_experts], multiplies each expert's weight at the end.
    """
    logits = logits.float()
    scores = logits
    if rules.scoring == "softmax":
        scores = logits.softmax(-1)
    elif rules.scoring == "sigmoid":
        scores = logits.sigmoid()
    choice = scores if selection_bias is None else scores + selection_bias
    if rules.num_groups > 1:
        choice = _within_best_groups(choice, rules)
    # A stable sort keeps the smaller index first among equal scores.
    order = choice.sort(dim=-1, descending=True, stable=True).indices
    chosen = order[:, : rules.experts_per_token]
    weights = scores.gather(-1, chosen)
    if rules.scoring == "softmax_chosen":
        weights = weights.softmax(-1)
    elif rules.normalizes_weights:
        floor = SIGMOID_FLOOR if rules.scoring == "sigmoid" else 0.0
        weights = weights / (weights.sum(-1, keepdim=True) + floor)
    weights = weights * rules.weight_scale
    if expert_scale is not None:
        weights = weights * expert_scale[chosen]
    return chosen.int(), weights


def group_by_expert(chosen: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pairs of a token and a slot in order of their experts, and where each begins.

    Args:
        chosen: int32 [T, k].

    Returns:
        Numbers ``token * k + slot``, int32 [T * k], those of an expert ascending; and the first
        place of each expert's pairs and of an end behind the last, int32 [num_experts + 1].
    """
    pairs = chosen.flatten().long()
    counts = torch.bincount(pairs, minlength=num_experts)
    starts = torch.cat((torch.zeros(1, dtype=torch.long, device=pairs.device), counts.cumsum(0)))
    return pairs.sort(stable=True).indices.int(), starts.int()


def _within_best_groups(choice: torch.Tensor, rules: RoutingRules) -> torch.Tensor:
    """Return the scores with those outside the best groups lowered below all others."""
    grouped = choice.view(choice.shape[0], rules.num_groups, -1)
    best = grouped.topk(rules.scores_in_group, dim=-1).values.sum(-1)
    kept = best.sort(dim=-1, descending=True, stable=True).indices[:, : rules.groups_per_token]
    allowed = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, kept, True)
    return grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(-2)
