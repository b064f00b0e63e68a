"""Routing on a processor equals the reference, and an expert's rows follow each other."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
import torch
from native_operations import INSTRUCTIONS, run_operation, started_pool

from zse.kernels.native.codes import Kind, Register, Scoring
from zse.kernels.native.structs import Experts, Operation, Step
from zse.kernels.route.reference import TOLERANCE, group_by_expert, route


@dataclass
class Rules:
    num_experts: int = 128
    experts_per_token: int = 8
    scoring: str = "softmax"
    num_groups: int = 1
    groups_per_token: int = 1
    scores_in_group: int = 1
    normalizes_weights: bool = True
    weight_scale: float = 1.0


@dataclass
class Routed:
    """What the kernels wrote."""

    experts: torch.Tensor
    """int32 [rows, experts_per_token]; so are the places."""
    places: torch.Tensor
    weights: torch.Tensor
    runs: torch.Tensor
    """int32 [runs, 3]: expert, first, end."""


def native_rules(
    rules: Rules, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> Experts:
    return Experts(
        num_experts=rules.num_experts,
        experts_per_token=rules.experts_per_token,
        scoring=Scoring[rules.scoring.upper()],
        normalizes=rules.normalizes_weights,
        weight_scale=rules.weight_scale,
        num_groups=rules.num_groups,
        groups_per_token=rules.groups_per_token,
        scores_in_group=rules.scores_in_group,
        selection_bias=None if bias is None else bias.data_ptr(),
        expert_scales=None if scale is None else scale.data_ptr(),
    )


def routed(instructions: str, logits: torch.Tensor, experts: Experts, threads: int = 1) -> Routed:
    rows, chosen = len(logits), experts.experts_per_token
    registers = {
        Register.ROUTER: logits.clone(),
        Register.CHOICES: torch.zeros(rows, chosen, 3, dtype=torch.int32),
        Register.RUNS: torch.zeros(rows * chosen + 1, 3, dtype=torch.int32),
    }
    with started_pool(instructions, threads) as pool:
        for kind in (Kind.ROUTE, Kind.SORT):
            operation = Operation(kind=kind, experts=ctypes.pointer(experts))
            run_operation(pool, operation, Step(rows=rows), registers)
    choices, runs = registers[Register.CHOICES], registers[Register.RUNS]
    return Routed(
        experts=choices[..., 0],
        places=choices[..., 1],
        weights=choices[..., 2].contiguous().view(torch.float32),
        runs=runs[1 : 1 + runs[0, 2]],
    )


def random_logits(rows: int, count: int) -> torch.Tensor:
    return torch.randn(rows, count, generator=torch.Generator().manual_seed(rows + count)) * 2


CASES = [
    Rules(),
    Rules(normalizes_weights=False, num_experts=60, experts_per_token=4),
    Rules(num_experts=8, experts_per_token=2, weight_scale=2.5),
    Rules(scoring="softmax_chosen", num_experts=32, experts_per_token=4),
    Rules(scoring="sigmoid", num_experts=129, experts_per_token=1),
    Rules(scoring="sigmoid", num_groups=8, groups_per_token=4, scores_in_group=2),
    Rules(num_groups=4, groups_per_token=1, normalizes_weights=False),
    Rules(num_experts=3, experts_per_token=3, scoring="sigmoid", weight_scale=0.5),
]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("has_extras", [False, True])
@pytest.mark.parametrize("rules", CASES, ids=str)
def test_choices_and_weights_are_the_references(
    instructions: str, rules: Rules, rows: int, has_extras: bool
) -> None:
    logits = random_logits(rows, rules.num_experts)
    bias, scale = None, None
    if has_extras:
        bias = random_logits(1, rules.num_experts)[0] / 10
        scale = random_logits(2, rules.num_experts)[1].abs()
    found = routed(instructions, logits, native_rules(rules, bias, scale), 2)
    experts, weights = route(logits, rules, selection_bias=bias, expert_scale=scale)
    assert torch.equal(found.experts, experts)
    torch.testing.assert_close(found.weights, weights, rtol=TOLERANCE, atol=1e-7)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("scoring", ["softmax", "softmax_chosen", "sigmoid"])
def test_among_equal_scores_the_first_expert_is_chosen(instructions: str, scoring: str) -> None:
    logits = torch.zeros(2, 40)
    logits[1, 7::8] = 3.0
    experts = native_rules(Rules(num_experts=40, experts_per_token=6, scoring=scoring))
    found = routed(instructions, logits, experts)
    assert found.experts.tolist() == [[0, 1, 2, 3, 4, 5], [7, 15, 23, 31, 39, 0]]


@pytest.mark.parametrize("rows", [1, 3, 90])
def test_rows_of_an_expert_follow_each_other_in_their_order(rows: int) -> None:
    rules = Rules(num_experts=40, experts_per_token=3)
    found = routed(INSTRUCTIONS[0], random_logits(rows, 40), native_rules(rules))
    pairs, starts = group_by_expert(found.experts, 40)
    places = torch.empty_like(pairs)
    places[pairs.long()] = torch.arange(len(pairs), dtype=torch.int32)
    assert torch.equal(found.places.flatten(), places)
    ends = starts[1:]
    used = (ends > starts[:-1]).nonzero().flatten()
    expected = [[expert, starts[expert].item(), ends[expert].item()] for expert in used.tolist()]
    assert found.runs.tolist() == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_choose_experts_that_there_are(bad: float) -> None:
    for scoring in ("softmax", "softmax_chosen", "sigmoid"):
        experts = native_rules(Rules(num_experts=16, experts_per_token=4, scoring=scoring))
        for logits in (torch.full((2, 16), bad), random_logits(2, 16)):
            logits[0, 3] = bad
            found = routed(INSTRUCTIONS[0], logits, experts)
            assert ((found.experts >= 0) & (found.experts < 16)).all()
            assert sorted(found.places.flatten().tolist()) == list(range(8))


def test_a_step_without_rows_has_no_runs() -> None:
    assert len(routed(INSTRUCTIONS[0], torch.zeros(0, 16), native_rules(Rules(16, 4))).runs) == 0
