"""A plan as a table and as JSON: what lies where, how fast that should be, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.mesh.partition import by_memory, evaluate

if TYPE_CHECKING:
    from zse.mesh.codecs import Codec
    from zse.mesh.facts import MeshFacts
    from zse.mesh.partition import Plan
    from zse.models.work import ModelWork


def describe_plan(mesh: MeshFacts, work: ModelWork, plan: Plan, *, lossy: Codec) -> dict[str, Any]:
    """Return a plan in plain values, with what a split by memory would have come to."""
    used = {stage.node for stage in plan.stages}
    naive = evaluate(mesh, work, by_memory(mesh, work), goal=plan.goal, lossy=lossy)
    return {
        "goal": plan.goal,
        "streams": work.streams,
        "context_tokens": work.context_tokens,
        "rows": plan.rows,
        "tokens_per_second": round(plan.tokens_per_second, 3),
        "latency_ms": round(plan.latency_seconds * 1e3, 4),
        "slowest_stage_ms": round(plan.slowest_seconds * 1e3, 4),
        "by_memory_tokens_per_second": naive and round(naive.tokens_per_second, 3),
        "stages": [
            {
                "node": mesh.nodes[stage.node].name,
                "first_layer": stage.first_layer,
                "end_layer": stage.end_layer,
                "devices": stage.devices,
                "memory_bytes": stage.memory_bytes,
                "step_ms": round(stage.seconds * 1e3, 4),
                "arrival_ms": round(stage.arrival_seconds * 1e3, 4),
                "arrives_as": stage.arrives_as.word if place else "tokens",
            }
            for place, stage in enumerate(plan.stages)
        ],
        "unused": [node.name for number, node in enumerate(mesh.nodes) if number not in used],
        "why": _reasons(mesh, plan, naive),
    }


def _reasons(mesh: MeshFacts, plan: Plan, naive: Plan | None) -> list[str]:
    times = [stage.seconds + stage.arrival_seconds for stage in plan.stages]
    slowest = plan.stages[times.index(max(times))]
    wires = sum(stage.arrival_seconds for stage in plan.stages)
    reasons = [
        f"{mesh.nodes[slowest.node].name} takes longest: {max(times) * 1e3:.3g} ms of a step",
        f"{wires / plan.latency_seconds:.0%} of a token's time is on wires",
    ]
    used = {stage.node for stage in plan.stages}
    for number, node in enumerate(mesh.nodes):
        if number not in used:
            reasons.append(f"{node.name} would take longer than it saves")
    if naive is None:
        reasons.append("a split in proportion to memory does not fit")
    else:
        gain = plan.tokens_per_second / naive.tokens_per_second
        reasons.append(f"{gain:.2f} times what a split in proportion to memory gives")
    return reasons
