"""What a replica costs in time, as measured: starts, swaps, steps, prompts.

Read from benchmarks/results, so that a new measurement is a new simulation. What nobody measured is
said as an assumption, with a name of its own.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
MODEL = "qwen2.5-7b"


@dataclass(frozen=True)
class Curves:
    """One model on one GPU.

    Args:
        start_seconds: Process start to first token, samples; a start is one of them, by lot.
        swap_seconds: The same where the process is there and another model leaves.
        steps: (requests that decode together, seconds of a step), ascending.
        prompt_tokens_per_second: Of prompts, one after the other.
        platform_seconds: Assumed: from asking for a machine to the start of the process.
        weights_bytes: What a start reads.
        origin_bytes_per_second: Assumed: what one object store gives all starts together; 0 for
            weights that lie on each node, as measured starts have them.
    """

    start_seconds: tuple[float, ...]
    swap_seconds: tuple[float, ...]
    steps: tuple[tuple[int, float], ...]
    prompt_tokens_per_second: float
    platform_seconds: float = 1.0
    weights_bytes: int = 0
    origin_bytes_per_second: float = 0.0

    @property
    def max_batch(self) -> int:
        """Requests that a replica works on; others wait."""
        return self.steps[-1][0]

    def step_seconds(self, batch: int) -> float:
        """Return how long a step of so many requests takes, between measured ones by a line."""
        steps = self.steps
        place = bisect_right(steps, (batch, float("inf")))
        if place == 0:
            return steps[0][1]
        if place == len(steps):
            return steps[-1][1]
        (low, fast), (high, slow) = steps[place - 1], steps[place]
        return fast + (slow - fast) * (batch - low) / (high - low)


def measured() -> Curves:
    """Return the curves of a 7B INT4 on an H200, of the results that are kept."""
    starts = _rows("cold-start-h200")
    first = next(
        model["zse"] for row in starts for model in row["models"] if _is_ours(model["model"])
    )
    swaps = _rows("swap-h200")[0]["models"].values()
    steps: dict[int, float] = {}
    for row in _rows("decode-h200"):
        for each in row["results"] if _is_ours(row["model"]) else ():
            steps.setdefault(each["batch"], each["step_ms_p50"] / 1e3)
    prefill = next(row for row in _rows("prefill-h200") if MODEL in row["model"])["results"][0]
    return Curves(
        start_seconds=tuple(
            first[f"first_token_ms_{what}"] / 1e3 for what in ("min", "p50", "max")
        ),
        swap_seconds=tuple(
            model[f"swap_first_token_ms_{what}"] / 1e3
            for model in swaps
            for what in ("min", "p50", "max")
        ),
        steps=tuple(sorted(steps.items())),
        prompt_tokens_per_second=prefill["tokens"] / prefill["ms_p50"] * 1e3,
        weights_bytes=next(
            model["file_bytes"]
            for row in starts
            for model in row["models"]
            if _is_ours(model["model"])
        ),
    )


def with_slow_starts(curves: Curves, seconds: float) -> Curves:
    """Return the same replica with starts that take so long."""
    return replace(curves, start_seconds=(seconds,), swap_seconds=(seconds,))


def _is_ours(model: str) -> bool:
    return f"{MODEL}-int4" in model


def _rows(name: str) -> list[dict]:
    found: list[dict] = json.loads((RESULTS / f"{name}.json").read_text())
    return found
