"""Shows the plan of a mixed conversion: a line for each kind of weight and scheme."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zse.quantize.mixed.plan import MixedPlan, Option

_LAYER = re.compile(r"^layers\.(\d+)\.")


def describe_plan(plan: MixedPlan) -> str:
    """Return a table: which layers of which weights have which scheme, its bits, what it loses."""
    found: dict[tuple[str, str], list[tuple[int, Option]]] = defaultdict(list)
    for name, option in plan.chosen.items():
        layer = _LAYER.match(name)
        kind = name[layer.end() if layer else 0 :].removesuffix(".weight")
        found[kind, _scheme_of(option)].append((int(layer[1]) if layer else 0, option))
    lines = [f"{'weights':<16} {'scheme':<10} {'bits':>5} {'lost':>8}  layers"]
    for (kind, scheme), members in sorted(found.items()):
        lost = sum(option.error for _, option in members) / len(members)
        bits = members[0][1].bits
        layers = _runs([index for index, _ in members])
        lines.append(f"{kind:<16} {scheme:<10} {bits:>5.2f} {lost:>8.3%}  {layers}")
    lines.append(f"{'all':<16} {'':<10} {plan.bits:>5.2f} {plan.error:>8.3%}")
    return "\n".join(lines)


def plan_json(plan: MixedPlan) -> dict[str, Any]:
    """Return the same, weight by weight, as JSON values."""
    return {
        "bits": plan.bits,
        "bytes": plan.length_bytes,
        "lost": plan.error,
        "weights": [
            {
                "name": name,
                "scheme": option.planned.scheme.value,
                "group_size": option.planned.group_size,
                "bits": option.bits,
                "lost": option.error,
            }
            for name, option in plan.chosen.items()
        ],
    }


def _scheme_of(option: Option) -> str:
    size = option.planned.group_size
    return f"{option.planned.scheme.value} g{size}" if size else option.planned.scheme.value


def _runs(numbers: list[int]) -> str:
    """Write ascending numbers as runs: 0-3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
