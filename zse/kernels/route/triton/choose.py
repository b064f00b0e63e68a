"""The choice of experts by a row's logits, and the kernel that makes it for rows of products."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.route import rules as numbers
from zse.kernels.triton.parts import load_bias, sum_partials, wait_for_inputs

SOFTMAX = tl.constexpr(numbers.SCORINGS.index("softmax"))
SOFTMAX_CHOSEN = tl.constexpr(numbers.SCORINGS.index("softmax_chosen"))
SIGMOID = tl.constexpr(numbers.SCORINGS.index("sigmoid"))
SIGMOID_FLOOR = tl.constexpr(numbers.SIGMOID_FLOOR)
MAX_CHOSEN = tl.constexpr(numbers.MAX_CHOSEN)
MAX_GROUPS = tl.constexpr(numbers.MAX_GROUPS)
TAKEN = tl.constexpr(-(2**63))
"""A key below those of all experts."""


class Rules(NamedTuple):
    """See ``zse.kernels.route.rules.RoutingRules``; ``scoring`` is a number of ``SCORINGS``."""

    experts: tl.tensor
    chosen: tl.tensor
    """Experts per token."""
    scoring: tl.tensor
    groups: tl.tensor
    groups_chosen: tl.tensor
    """Groups per token."""
    scores_in_group: tl.tensor
    normalizes: tl.tensor
    """Whether weights are scaled to a sum of one, 0 or 1."""
    scale: tl.tensor
    """Multiplies the weights."""


class Extras(NamedTuple):
    """What only some routers have."""

    selection_bias: tl.tensor
    """Address of float32 [experts]."""
    has_selection_bias: tl.tensor
    expert_scale: tl.tensor
    """Address of float32 [experts]."""
    has_expert_scale: tl.tensor


@triton.jit
def ordered(values):
    """Return int32 in the order of float32; applied to its bits again it gives them back."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """Return the float32 that ``ordered`` made a key of, from the upper half of int64."""
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def within_best_groups(choice, index, rules, EXPERTS: tl.constexpr):
    """Return [EXPERTS] scores with those outside the best groups lowered below all others."""
    nothing = float("-inf")
    group = index // (rules.experts // rules.groups)
    lane = tl.arange(0, MAX_GROUPS)
    totals = tl.full((MAX_GROUPS,), nothing, tl.float32)
    for number in range(rules.groups):
        left = tl.where((group == number) & (index < rules.experts), choice, nothing)
        total = tl.sum(tl.zeros((MAX_GROUPS,), tl.float32), 0)
        for _ in range(rules.scores_in_group):
            best = tl.max(left, 0)
            first = tl.min(tl.where(left == best, index, EXPERTS), 0)
            left = tl.where(index == first, nothing, left)
            total += best
        totals = tl.where(lane == number, total, totals)
    allowed = index < 0
    for _ in range(rules.groups_chosen):
        best = tl.max(totals, 0)
        first = tl.min(tl.where(totals == best, lane, MAX_GROUPS), 0)
        totals = tl.where(lane == first, nothing, totals)
        allowed = allowed | (group == first)
    return tl.where(allowed, choice, nothing)


@triton.jit
def choose_experts(logits, rules, extras, EXPERTS: tl.constexpr):
    """Return the chosen experts, int32 [MAX_CHOSEN], best first, and their weights, float32.

    A key is a score and, among equals, how near an expert is to the first; so the largest key is
    the next one chosen. Past the chosen ones both are zero.

    Args:
        logits: float32 [EXPERTS], of which those below ``rules.experts`` count.
        rules: ``Rules``.
        extras: ``Extras``.
        EXPERTS: A power of two, not below ``rules.experts``.
    """
    index = tl.arange(0, EXPERTS)
    exists = index < rules.experts
    scores = tl.where(exists, logits, float("-inf"))
    if rules.scoring == SOFTMAX:
        scores = tl.exp(scores - tl.max(scores, 0))
        scores = scores / tl.sum(scores, 0)
    if rules.scoring == SIGMOID:
        scores = tl.sigmoid(tl.maximum(scores, -80.0))
    choice = scores + load_bias(extras.selection_bias, index, exists, extras.has_selection_bias)
    if rules.groups > 1:
        choice = within_best_groups(choice, index, rules, EXPERTS)
    keys = (ordered(choice).to(tl.int64) << 32) | (EXPERTS - 1 - index).to(tl.int64)
    keys = tl.where(exists, keys, TAKEN)
    slot = tl.arange(0, MAX_CHOSEN)
    chosen = tl.zeros((MAX_CHOSEN,), tl.int32)
    weights = tl.zeros((MAX_CHOSEN,), tl.float32)
    for number in range(rules.chosen):
        best = tl.max(keys, 0)
        expert = EXPERTS - 1 - (best & (EXPERTS - 1)).to(tl.int32)
        weight = value_of(best)
        if extras.has_selection_bias != 0:
            weight = tl.sum(tl.where(index == expert, scores, 0.0), 0)
        chosen = tl.where(slot == number, expert, chosen)
        weights = tl.where(slot == number, weight, weights)
        keys = tl.where(keys == best, TAKEN, keys)
    return chosen, weighed(weights, chosen, slot < rules.chosen, rules, extras)


@triton.jit
def weighed(scores, chosen, kept, rules, extras):
    """Return the weights of the chosen experts, made of their scores."""
    weights = scores
    if rules.scoring == SOFTMAX_CHOSEN:
        largest = tl.max(tl.where(kept, scores, float("-inf")), 0)
        weights = tl.where(kept, tl.exp(scores - largest), 0.0)
        weights = weights / tl.sum(weights, 0)
    elif rules.normalizes != 0:
        weights = weights / (
            tl.sum(weights, 0) + tl.where(rules.scoring == SIGMOID, SIGMOID_FLOOR, 0.0)
        )
    weights *= rules.scale
    has_scale = (tl.zeros_like(chosen) + extras.has_expert_scale) > 0
    return weights * tl.load(extras.expert_scale + chosen, mask=kept & has_scale, other=1.0)


@triton.jit
def store_choice(chosen, weights, experts, expert_weights, row, shared_weight, shared_slots, rules):
    """Store a row's choice, and behind it the shared expert as the number after the last."""
    slot = tl.arange(0, MAX_CHOSEN)
    slots = rules.chosen + shared_slots
    is_shared = slot == rules.chosen
    at = row * slots + slot
    tl.store(experts + at, tl.where(is_shared, rules.experts, chosen), mask=slot < slots)
    tl.store(expert_weights + at, tl.where(is_shared, shared_weight, weights), mask=slot < slots)


@triton.jit
def choose(
    logits, bias, gate_logits, selection_bias, expert_scale, experts, expert_weights,
    split_rows, splits, gate_split_rows, gate_splits, has_bias, has_gate, shared_slots,
    has_selection_bias, has_expert_scale, num_experts, num_chosen, scoring, num_groups,
    groups_chosen, scores_in_group, normalizes, scale,
    EXPERTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Choose the experts of one row by the summands of its logits.

    Program: (row).

    Operands:
        logits: float32 [splits, split_rows, num_experts].
        bias: float32 [num_experts], part of the logits.
        gate_logits: float32 [gate_splits, gate_split_rows]: of the shared expert's gate.
        experts: int32 [rows, num_chosen + shared_slots].
        expert_weights: float32 of the same shape.
        shared_slots: 1 where a shared expert is the last slot, else 0. Its weight is the sigmoid of
            its gate where there is one (``has_gate``), else 1.
    """
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    rules = Rules(num_experts, num_chosen, scoring, num_groups, groups_chosen, scores_in_group,
                  normalizes, scale)  # fmt: skip
    extras = Extras(selection_bias, has_selection_bias, expert_scale, has_expert_scale)
    index = tl.arange(0, EXPERTS)
    exists = index < num_experts
    stride = split_rows.to(tl.int64) * num_experts
    line = logits + row.to(tl.int64) * num_experts
    values = sum_partials(line, index, exists, splits, stride)
    values += load_bias(bias, index, exists, has_bias)
    gate = sum_partials(
        gate_logits + row, index, (index == 0) & (has_gate + index > 0), gate_splits,
        gate_split_rows.to(tl.int64),
    )  # fmt: skip
    gate_sum = tl.sum(gate, 0)
    shared_weight = tl.where(has_gate != 0, tl.sigmoid(tl.maximum(gate_sum, -80.0)), 1.0)
    chosen, weights = choose_experts(values, rules, extras, EXPERTS)
    store_choice(chosen, weights, experts, expert_weights, row, shared_weight, shared_slots, rules)
