"""The norm of a few rows, their router and their choice of experts in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.route.triton.choose import Extras, Rules, choose_experts, store_choice
from zse.kernels.triton.parts import GROUP, load_bias, store_activations, sum_partials


@triton.jit
def normalized_row(stream, added, added_bias, columns, inside, hidden, added_rows, splits,
                   has_added_bias, added_scale, epsilon):  # fmt: skip
    """Return the new residual stream of a row, and itself over its root mean square.

    Both are float32 in the shape of columns; the second is a norm without its weight.
    """
    values = tl.load(stream + columns, mask=inside, other=0.0)
    if splits > 0:
        total = sum_partials(added, columns, inside, splits, added_rows.to(tl.int64) * hidden)
        total += load_bias(added_bias, columns, inside, has_added_bias)
        values += total * added_scale
    mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
    return values, values * tl.rsqrt(mean + epsilon)


@triton.jit
def norm_route(
    residual, added, added_bias, norm, router_norm, router, router_bias, selection_bias,
    expert_scale, outputs, scales, sums, logits, counters, experts, expert_weights,
    gate_offset, hidden, added_rows, splits, has_added_bias, has_router_bias, has_gate,
    shared_slots, has_selection_bias, has_expert_scale, num_experts, num_chosen, scoring,
    num_groups, groups_chosen, scores_in_group, normalizes, scale, added_scale, epsilon,
    GROUPS: tl.constexpr, AT_ONCE: tl.constexpr, EXPERTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add pending sums to a row of the stream, normalize it, and choose its experts.

    Program: (AT_ONCE rows of the router, row). Each one makes the norm for itself and leaves
    logits; the last one of a row chooses, and stores the stream, which the others have read by
    then, and the activations. Its counter is zero before and after.

    Operands:
        residual: float32 [rows, hidden], changed in place where there are ``splits``.
        added: float32 [splits, added_rows, hidden].
        added_bias: float32 [hidden], added to their sum; ``added_scale`` multiplies both.
        norm: float32 [hidden], the weight of the RMSNorm.
        router_norm: The same of what the router reads, which may be the same weight.
        router: [num_experts, hidden]; ``gate_offset`` elements behind its beginning lies the row of
            the shared expert's gate, where there is one (``has_gate``).
        router_bias: float32 [num_experts].
        outputs, scales, sums: Activations, int8 or bfloat16.
        logits: float32 [rows, num_experts + 1].
        counters: int32 [rows].
        experts, expert_weights, shared_slots: As in ``choose.choose``.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1).to(tl.int64)
    groups = tl.arange(0, GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    norm_weight = tl.load(norm + columns, mask=inside, other=0.0)
    router_weight = tl.load(router_norm + columns, mask=inside, other=0.0)
    number = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    wanted = number < num_experts + has_gate
    start = tl.where(number < num_experts, number.to(tl.int64) * hidden, gate_offset)
    at = router + start[:, None, None] + columns[None, :, :]
    matrix = tl.load(at, mask=wanted[:, None, None] & inside[None, :, :], other=0.0)
    bias = load_bias(router_bias, number, number < num_experts, has_router_bias)
    if PDL:
        tl.extra.cuda.gdc_wait()
    stream = residual + row * hidden
    values, normalized = normalized_row(
        stream, added + row * hidden, added_bias, columns, inside, hidden, added_rows, splits,
        has_added_bias, added_scale, epsilon,
    )  # fmt: skip
    products = matrix.to(tl.float32) * (normalized * router_weight)[None, :, :]
    line = logits + row * (num_experts + 1)
    tl.store(line + number, tl.sum(tl.sum(products, axis=2), axis=1) + bias, mask=wanted)
    tl.debug_barrier()  # every thread has stored before one of them says so
    arrived = tl.atomic_add(counters + row, 1, sem="acq_rel")
    if arrived == tl.num_programs(0) - 1:
        tl.store(counters + row, 0)
        if splits > 0:
            tl.store(stream + columns, values, mask=inside)
        row_groups = tl.cdiv(hidden, GROUP)
        store_activations(normalized * norm_weight, outputs + row * hidden,
                          scales + row * row_groups, sums + row * row_groups, columns, groups,
                          inside, groups < row_groups)  # fmt: skip
        rules = Rules(num_experts, num_chosen, scoring, num_groups, groups_chosen, scores_in_group,
                      normalizes, scale)  # fmt: skip
        extras = Extras(selection_bias, has_selection_bias, expert_scale, has_expert_scale)
        index = tl.arange(0, EXPERTS)
        # Written by other programs during this launch: read past the first-level cache.
        row_logits = tl.load(line + index, mask=index < num_experts, other=0.0,
                             cache_modifier=".cg")  # fmt: skip
        gate = tl.load(line + num_experts + tl.arange(0, 1), cache_modifier=".cg",
                       mask=tl.arange(0, 1) < has_gate, other=0.0)  # fmt: skip
        gate_weight = tl.sigmoid(tl.maximum(tl.sum(gate, 0), -80.0))
        shared_weight = tl.where(has_gate != 0, gate_weight, 1.0)
        chosen, weights = choose_experts(row_logits, rules, extras, EXPERTS)
        store_choice(chosen, weights, experts, expert_weights, row, shared_weight, shared_slots,
                     rules)  # fmt: skip
