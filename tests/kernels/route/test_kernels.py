"""The kernels of routing equal their references, in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.reference import dequantize, residual_norm
from zse.kernels.route.launch import (
    Choice,
    Grouping,
    Pending,
    Router,
    RouterMatrix,
    check_router,
    choose,
    group_pairs,
    norm_route,
)
from zse.kernels.route.reference import TOLERANCE, group_by_expert, route

ROWS = 3


@dataclass
class Rules:
    num_experts: int = 20
    experts_per_token: int = 4
    scoring: str = "softmax"
    num_groups: int = 1
    groups_per_token: int = 1
    scores_in_group: int = 1
    normalizes_weights: bool = True
    weight_scale: float = 1.0


GROUPED: dict[str, Any] = {"num_groups": 4, "groups_per_token": 2, "scores_in_group": 2}


@dataclass
class Routed:
    """Where a choice goes."""

    slots: int
    rows: int = ROWS
    experts: torch.Tensor = field(init=False)
    weights: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.experts = torch.full((self.rows, self.slots), -1, dtype=torch.int32)
        self.weights = torch.full((self.rows, self.slots), float("nan"))

    @property
    def choice(self) -> Choice:
        return Choice(
            rows=self.rows, slots=self.slots, experts=self.experts.data_ptr(),
            weights=self.weights.data_ptr(),
        )  # fmt: skip

    def check(self, chosen: torch.Tensor, weights: torch.Tensor, tolerance: float) -> None:
        assert torch.equal(self.experts, chosen.int())
        torch.testing.assert_close(self.weights, weights.float(), rtol=tolerance, atol=1e-7)


def partials(values: torch.Tensor) -> Partials:
    splits, rows, columns = values.shape
    return Partials(rows=rows, columns=columns, splits=splits, values=values.data_ptr())


@pytest.mark.parametrize("scoring", ["softmax", "softmax_chosen", "sigmoid"])
@pytest.mark.parametrize("extra", [{}, GROUPED, {"normalizes_weights": False, "weight_scale": 2.5}])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_choice_equals_the_reference(scoring: str, extra: dict[str, Any], has_bias: bool) -> None:
    torch.manual_seed(5)
    rules = Rules(scoring=scoring, **extra)
    parts = torch.randn(3, ROWS, 20)
    bias, scale = torch.randn(20) * 0.2, torch.rand(20) + 0.5
    router = Router(rules=rules)
    if has_bias:
        router = Router(
            rules=rules, bias=bias.data_ptr(), selection_bias=bias.data_ptr(),
            expert_scale=scale.data_ptr(),
        )  # fmt: skip
    routed = Routed(4)
    choose(InterpretedLauncher(), router, partials(parts), routed.choice, None)
    logits = parts.sum(0) + bias * has_bias
    expected = route(
        logits, rules, selection_bias=bias if has_bias else None,
        expert_scale=scale if has_bias else None,
    )  # fmt: skip
    routed.check(*expected, TOLERANCE)


@pytest.mark.parametrize("experts", [128, 130, 512])
def test_every_number_of_experts_and_equal_scores_choose_the_smaller_numbers(experts: int) -> None:
    rules = Rules(num_experts=experts, experts_per_token=8, scoring="sigmoid")
    parts = torch.zeros(1, ROWS, experts)
    parts[0, 1, -1], parts[0, 2, 5] = 1.0, -1.0
    parts[0, 0, ::2] = -0.0
    routed = Routed(8)
    choose(InterpretedLauncher(), Router(rules=rules), partials(parts), routed.choice, None)
    routed.check(*route(parts[0], rules), TOLERANCE)
    assert routed.experts[0].tolist() == list(range(8))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_logits_that_are_no_numbers_choose_experts_that_exist() -> None:
    parts = torch.full((1, ROWS, 20), float("nan"))
    parts[0, 1], parts[0, 2] = float("inf"), -float("inf")
    routed = Routed(4)
    choose(InterpretedLauncher(), Router(rules=Rules()), partials(parts), routed.choice, None)
    assert routed.experts.min() >= 0
    assert routed.experts.max() < 20


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_shared_expert_is_the_last_slot_with_its_gate_as_weight(has_gate: bool) -> None:
    torch.manual_seed(6)
    parts, gates = torch.randn(2, ROWS, 20), torch.randn(2, ROWS, 1)
    router, routed = Router(rules=Rules(), has_shared_slot=True), Routed(5)
    gate = partials(gates) if has_gate else None
    choose(InterpretedLauncher(), router, partials(parts), routed.choice, gate)
    chosen, weights = route(parts.sum(0), Rules())
    shared = gates.sum(0).sigmoid() if has_gate else torch.ones(ROWS, 1)
    last = torch.full((ROWS, 1), 20)
    routed.check(torch.cat((chosen, last), 1), torch.cat((weights, shared), 1), TOLERANCE)


@pytest.mark.parametrize("rows", [1, 7, 700])
def test_pairs_are_sorted_by_their_experts(rows: int) -> None:
    chosen = torch.randint(0, 9, (rows, 4), generator=torch.Generator().manual_seed(rows)).int()
    chosen[chosen == 3] = 4  # one that nobody chose
    order = torch.full((rows * 4,), -1, dtype=torch.int32)
    starts = torch.full((10,), -1, dtype=torch.int32)
    group_pairs(
        InterpretedLauncher(),
        Choice(rows=rows, slots=4, experts=chosen.data_ptr(), weights=0),
        Grouping(pairs=rows * 4, groups=9, order=order.data_ptr(), starts=starts.data_ptr()),
    )  # fmt: skip
    expected_order, expected_starts = group_by_expert(chosen, 9)
    assert torch.equal(order, expected_order)
    assert torch.equal(starts, expected_starts)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize(
    ("has_gate", "has_router_norm"), [(False, False), (True, False), (False, True)]
)
def test_the_norm_of_a_few_rows_chooses_their_experts(
    quantized: bool, splits: int, has_gate: bool, has_router_norm: bool
) -> None:
    torch.manual_seed(7)
    hidden, rules = 288, Rules(scoring="softmax_chosen")
    residual, added = torch.randn(ROWS, hidden), torch.randn(max(splits, 1), ROWS, hidden)
    norm, bias, added_bias = torch.rand(hidden) + 0.5, torch.randn(20), torch.randn(hidden)
    matrix = (torch.randn(32, hidden) * 0.1).bfloat16()
    router = Router(rules=rules, bias=bias.data_ptr(), has_shared_slot=has_gate)
    routed = Routed(router.slots)
    pending = Pending()
    if splits:
        pending = Pending(added=partials(added), bias=added_bias.data_ptr(), scale=0.5)
    codes = torch.zeros(ROWS, hidden, dtype=torch.int8)
    scales, sums = torch.zeros(ROWS, 3), torch.zeros(ROWS, 3)
    plain = torch.zeros(ROWS, hidden, dtype=torch.bfloat16)
    output: Plain | Quantized = Plain(rows=ROWS, columns=hidden, values=plain.data_ptr())
    if quantized:
        output = Quantized(
            rows=ROWS, columns=hidden, codes=codes.data_ptr(), scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        )  # fmt: skip
    expected_stream, expected = residual_norm(
        residual, norm, 1e-6, added if splits else None, added_bias=added_bias, added_scale=0.5
    )
    router_norm = torch.rand(hidden) - 0.5
    routed_by = expected / norm * router_norm if has_router_norm else expected
    logits, counters = torch.zeros(ROWS, 21), torch.zeros(ROWS, dtype=torch.int32)
    norm_route(
        InterpretedLauncher(), residual.data_ptr(), pending, norm.data_ptr(), 1e-6, router,
        RouterMatrix(weights=matrix.data_ptr(), gate=matrix[24].data_ptr() if has_gate else 0),
        output, routed.choice, logits.data_ptr(), counters.data_ptr(),
        router_norm_address=router_norm.data_ptr() if has_router_norm else 0,
    )  # fmt: skip
    torch.testing.assert_close(residual, expected_stream)
    assert counters.tolist() == [0] * ROWS
    found = dequantize(torch.nn.functional.pad(codes, (0, 96)), scales)[:, :hidden]
    torch.testing.assert_close(
        found if quantized else plain.float(), expected, rtol=2e-2, atol=2e-2
    )
    chosen, weights = route(routed_by @ matrix[:20].float().T + bias, rules)
    if has_gate:
        chosen = torch.cat((chosen, torch.full((ROWS, 1), 20)), 1)
        weights = torch.cat((weights, (expected @ matrix[24].float()).sigmoid()[:, None]), 1)
    routed.check(chosen, weights, 1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_experts": 513},
        {"experts_per_token": 33, "num_experts": 64},
        {"num_groups": 17, "num_experts": 34},
        {"scoring": "argmax"},
        {"experts_per_token": 21},
    ],
)
def test_a_router_beyond_what_the_kernels_hold_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="experts"):
        check_router(Router(rules=Rules(**wrong)))
