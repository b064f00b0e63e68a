"""How to launch ``route``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.layout import Quantized, activation_addresses
from zse.kernels.route.rules import MAX_CHOSEN, MAX_GROUPS, SCORINGS
from zse.kernels.route.variants import (
    AT_ONCE,
    choose_variant,
    group_variant,
    norm_route_variant,
)
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.layout import Activation, Partials
    from zse.kernels.route.rules import RoutingRules


@record
class Router:
    """A router on the device, and how its logits are read."""

    rules: RoutingRules
    bias: int = 0
    """Address of float32 [experts], part of the logits; 0 for none."""
    selection_bias: int = 0
    """Address of float32 [experts], added to scores for the choice alone; 0 for none."""
    expert_scale: int = 0
    """Address of float32 [experts], multiplies weights; 0 for none."""
    has_shared_slot: bool = False
    """Whether a shared expert takes the last slot, as the expert after the last."""

    @property
    def slots(self) -> int:
        """Experts that a row goes through."""
        return self.rules.experts_per_token + self.has_shared_slot


@record
class Choice:
    """Which experts rows go through."""

    rows: int
    slots: int
    experts: int
    """Address of int32 [rows, slots]."""
    weights: int
    """Address of float32 [rows, slots]."""

    @property
    def pairs(self) -> int:
        """A row and one of its slots; the pair's number is ``row * slots + slot``."""
        return self.rows * self.slots


@record
class Grouping:
    """The pairs of a choice in the order of their experts."""

    pairs: int
    groups: int
    """Experts whose pairs are wanted: pairs of later ones are left out."""
    order: int
    """Address of int32 [pairs]: numbers of pairs."""
    starts: int
    """Address of int32 [groups + 1]: where those of each expert begin, and the end."""


@record
class Pending:
    """What a norm adds to the residual stream first."""

    added: Partials | None = None
    bias: int = 0
    """Address of float32 [hidden], added to their sum; 0 for none."""
    scale: float = 1.0
    """Multiplies both."""


@record
class RouterMatrix:
    """A router's matrix, and the shared expert's gate as one more row of it."""

    weights: int
    """Address of bfloat16 [experts, hidden]."""
    gate: int = 0
    """Address of bfloat16 [hidden]; 0 for none."""


def check_router(router: Router) -> None:
    """Refuse a router that the kernels do not choose by.

    Raises:
        UnsupportedModelError: It has too many experts, slots or groups, or scores of another kind.
    """
    rules = router.rules
    choose_variant(rules.num_experts)
    count, groups = rules.experts_per_token, rules.num_groups
    is_sound = 0 < count <= rules.num_experts and router.slots <= MAX_CHOSEN
    if not is_sound or groups > MAX_GROUPS or rules.scoring not in SCORINGS:
        raise UnsupportedModelError(
            f"{count} of {rules.num_experts} experts by {rules.scoring!r} in {groups} groups; the "
            f"kernels choose up to {MAX_CHOSEN} by {', '.join(SCORINGS)} in up to {MAX_GROUPS}"
        )


def choose(
    launcher: Launcher, router: Router, logits: Partials, choice: Choice, gate: Partials | None
) -> None:
    """Choose the experts of each row.

    Args:
        logits: [rows, experts], without the router's bias.
        choice: Where to; ``choice.slots`` are the router's.
        gate: Logits [rows, 1] of the shared expert's gate, where it takes a slot and has one.
    """
    gates = (gate.split_rows, gate.splits) if gate else (0, 0)
    launcher.launch(
        choose_variant(router.rules.num_experts),
        (choice.rows, 1, 1),
        logits.values,
        router.bias,
        gate.values if gate else 0,
        router.selection_bias,
        router.expert_scale,
        choice.experts,
        choice.weights,
        logits.split_rows,
        logits.splits,
        *gates,
        int(router.bias != 0),
        int(gate is not None),
        *_numbers(router),
    )


def group_pairs(launcher: Launcher, choice: Choice, grouping: Grouping) -> None:
    """Sort the pairs of a choice by their experts."""
    launcher.launch(
        group_variant(),
        (grouping.groups, 1, 1),
        choice.experts,
        grouping.order,
        grouping.starts,
        choice.pairs,
        grouping.groups,
    )


def norm_route(
    launcher: Launcher,
    residual_address: int,
    pending: Pending,
    norm_address: int,
    epsilon: float,
    router: Router,
    matrix: RouterMatrix,
    output: Activation,
    choice: Choice,
    logits_address: int,
    counters_address: int,
    *,
    router_norm_address: int = 0,
) -> None:
    """Add pending sums to a few rows of the stream, store their RMSNorm, and choose experts.

    Args:
        residual_address: float32 [rows, hidden]; changed in place where something is pending.
        norm_address: float32 [hidden], the norm's weight.
        output: Activations [rows, hidden]; ``fits_norm_route(hidden)``.
        logits_address: Where float32 [rows, experts + 1] may lie meanwhile.
        counters_address: int32 [rows], zero before and after.
        router_norm_address: float32 [hidden], the weight of the norm that the router reads, whose
            epsilon is the other's; 0 where it reads what the experts do.
    """
    scales, sums, outputs = activation_addresses(output)
    added = pending.added
    summands = (added.split_rows, added.splits) if added else (0, 0)
    rules, has_gate = router.rules, matrix.gate != 0
    launcher.launch(
        norm_route_variant(output.columns, quantized=isinstance(output, Quantized)),
        (-(-(rules.num_experts + has_gate) // AT_ONCE), output.rows, 1),
        residual_address,
        added.values if added else 0,
        pending.bias,
        norm_address,
        router_norm_address or norm_address,
        matrix.weights,
        router.bias,
        router.selection_bias,
        router.expert_scale,
        outputs,
        scales,
        sums,
        logits_address,
        counters_address,
        choice.experts,
        choice.weights,
        (matrix.gate - matrix.weights) // 2 if has_gate else 0,
        output.columns,
        *summands,
        int(pending.bias != 0),
        int(router.bias != 0),
        int(has_gate),
        *_numbers(router),
        pending.scale,
        epsilon,
    )


def _numbers(router: Router) -> tuple[Value, ...]:
    """Return the numbers of a choice as the kernels take them."""
    rules = router.rules
    return (
        int(router.has_shared_slot),
        int(router.selection_bias != 0),
        int(router.expert_scale != 0),
        rules.num_experts,
        rules.experts_per_token,
        SCORINGS.index(rules.scoring),
        rules.num_groups,
        rules.groups_per_token,
        rules.scores_in_group,
        int(rules.normalizes_weights),
        rules.weight_scale,
    )
