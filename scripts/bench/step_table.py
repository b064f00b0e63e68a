"""What the lines of ``zse serve --trace-steps FILE`` say, as a table: a line for each kind of step.

    python scripts/bench/step_table.py FILE

Columns are medians in milliseconds but for the sums, in seconds: ``between`` is what the engine's
thread did from one step's tokens to planning the next, ``plan`` and ``submit`` are the scheduler's
and the runner's, ``wait`` is how long it waited for the device, which is what the host had to
spare. ``device`` is the device's own time of a step, ``idle`` what it had nothing to do before one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("between", "plan", "submit", "wait", "step", "device", "idle")
HEADING = (
    f"{'':>14} {'kind':>8} {'steps':>6} {'rows':>5} {'prompts':>8} {'tokens':>8} "
    + " ".join(f"{name:>8}" for name in COLUMNS)
    + f" {'sum device':>10} {'sum idle':>8} {'sum step':>8} {'tok/s':>7}"
)


def read_steps(path: str | Path) -> list[dict[str, Any]]:
    """Return the steps of a trace, as far as it was written."""
    steps = []
    for line in Path(path).read_text().splitlines():
        step = json.loads(line) if line.endswith("}") else {}
        if "kind" in step:
            steps.append(step)
    return steps


def table_of(name: str, steps: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table about steps, one for each kind."""
    lines = []
    for kind in sorted({step["kind"] for step in steps}):
        own = [step for step in steps if step["kind"] == kind]
        tokens = sum(step["prompt_tokens"] for step in own)
        seconds = {key: _sum(own, key) for key in ("device", "idle", "step")}
        rate = tokens / (seconds["device"] or seconds["step"]) if tokens else 0.0
        lines.append(
            f"{name:>14} {kind:>8} {len(own):>6} {_middle(own, 'rows'):>5.0f} "
            f"{_middle(own, 'prompts'):>8.0f} {_middle(own, 'prompt_tokens'):>8.0f} "
            + " ".join(f"{_middle(own, f'{key}_us') / 1e3:>8.3f}" for key in COLUMNS)
            + f" {seconds['device']:>10.3f} {seconds['idle']:>8.3f} {seconds['step']:>8.3f}"
            + f" {rate:>7.0f}"
        )
    return lines


def _middle(steps: list[dict[str, Any]], key: str) -> float:
    values = sorted(step.get(key, 0.0) for step in steps)
    return float(values[len(values) // 2])


def _sum(steps: list[dict[str, Any]], key: str) -> float:
    return float(sum(step.get(f"{key}_us", 0.0) for step in steps)) / 1e6


def main() -> None:
    print(HEADING)
    print("\n".join(table_of("all", read_steps(sys.argv[1]))))


if __name__ == "__main__":
    main()
