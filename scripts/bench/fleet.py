"""Simulates fleets of 10 to 10,000 GPUs that sleep while nobody asks: what they cost, who waits.

    python scripts/bench/fleet.py                          # the table of docs/guides/fleet.md
    python scripts/bench/fleet.py --breaks                 # what breaks first, and where

Each model has a GPU of its own where it is always warm, so ten models are ten GPUs. The same
requests (seeded) meet: replicas that are always there; replicas that sleep and take 15 s to start;
the same, which stay for ten minutes; replicas that sleep and start as ours were measured; and a
pool of GPUs on which models swap. Starts, swaps, steps and prompts are measured
(``fleet_curves.py``); requests and platforms are assumed and told. Prints a table, and one JSON
object as the last line.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path

from fleet_curves import measured, with_slow_starts
from fleet_policies import AlwaysWarm, ScaleToZero, SwapPool
from fleet_simulator import Simulation
from fleet_traces import Bursts, requests_of

ROOT = Path(__file__).resolve().parents[2]
SLOW_START_SECONDS = 15.0
POOL_SHARE = 0.25
"""GPUs of the pool, of those that are always warm."""


def usd_per_hour(hardware: str = "H200") -> float:
    """Return a list price, of the table that `zse cost` reads."""
    table = tomllib.loads((ROOT / "zse" / "deploy" / "data" / "runpod.toml").read_text())
    rows = [row for rows in table.values() if isinstance(rows, list) for row in rows]
    return next(row["usd_per_hour"] for row in rows if row.get("hardware") == hardware)


def subjects(models: int, curves) -> dict:
    """Return name -> (curves, policy, GPUs; 0 for as many as are wanted)."""
    slow = with_slow_starts(curves, SLOW_START_SECONDS)
    return {
        "always warm": (curves, AlwaysWarm(), 0),
        "sleeps, 15 s starts": (slow, ScaleToZero(), 0),
        "15 s starts, kept 10 min": (slow, ScaleToZero(idle_seconds=600.0), 0),
        "sleeps, zse's starts": (curves, ScaleToZero(), 0),
        "pool that swaps": (curves, SwapPool(), max(1, round(models * POOL_SHARE))),
    }


def simulate(curves, policy, *, gpus, bursts, models, seconds, seed) -> dict:
    begun = time.perf_counter()
    trace = requests_of(bursts, models=models, seconds=seconds, seed=seed)
    result = Simulation(curves, policy, gpus=gpus, seed=seed).run(
        trace, models=models, seconds=seconds
    )
    assert result.arrived == result.finished
    hours = seconds / 3600
    price = usd_per_hour()
    return {
        "requests": result.arrived,
        "first_token_ms": {
            name: round(result.percentile(share) * 1e3, 1)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
        },
        "mean_gpus": round(result.gpu_seconds / seconds, 2),
        "most_gpus": result.most_gpus,
        "most_starting": result.most_starting,
        "starts": result.starts + result.swaps,
        "waited_for_gpu": result.waited_for_gpu,
        "usd_per_hour": round(result.gpu_seconds / 3600 / hours * price, 2),
        "usd_per_million_requests": round(
            result.gpu_seconds / 3600 * price / max(1, result.arrived) * 1e6
        ),
        "simulated_in_seconds": round(time.perf_counter() - begun, 1),
    }


def hours_of(models: int, hours: float) -> float:
    """Return how long a fleet is simulated: large ones for less, about as many requests each."""
    return min(hours, max(0.25, hours * 500 / models))


def compare(options) -> list[dict]:
    """Simulate all sizes and subjects."""
    curves = replace(measured(), platform_seconds=options.platform_seconds)
    found = []
    for models in options.models:
        seconds = hours_of(models, options.hours) * 3600
        for name, (own, policy, gpus) in subjects(models, curves).items():
            told = simulate(
                own, policy, gpus=gpus, bursts=Bursts(rate=options.rate), models=models,
                seconds=seconds, seed=options.seed,
            )  # fmt: skip
            found.append({"models": models, "subject": name, "hours": seconds / 3600, **told})
            print_row(found[-1])
    return found


def breaks(options) -> list[dict]:
    """Wake a share of all models within a second, with less and less of what starts need."""
    curves = replace(measured(), platform_seconds=options.platform_seconds)
    found = []
    for models in options.models:
        seconds = 600.0
        bursts = Bursts(rate=options.rate, crowd_at=300.0, crowd_share=0.3)
        cases = {
            "weights on each node": (curves, ScaleToZero(), 0),
            "one store of 400 Gbit/s": (
                replace(curves, origin_bytes_per_second=400e9 / 8), ScaleToZero(), 0
            ),
            "one store of 100 Gbit/s": (
                replace(curves, origin_bytes_per_second=100e9 / 8), ScaleToZero(), 0
            ),
            "GPUs for a quarter": (curves, ScaleToZero(), max(1, models // 4)),
            "GPUs for a tenth": (curves, ScaleToZero(), max(1, models // 10)),
            "a quarter, swapped": (curves, SwapPool(), max(1, models // 4)),
        }  # fmt: skip
        for name, (own, policy, gpus) in cases.items():
            told = simulate(
                own, policy, gpus=gpus, bursts=bursts, models=models, seconds=seconds,
                seed=options.seed,
            )  # fmt: skip
            found.append({"models": models, "subject": name, "crowd": True, **told})
            print_row(found[-1])
    return found


def print_row(row: dict) -> None:
    first = row["first_token_ms"]
    print(
        f"{row['models']:6}  {row['subject']:24} {row['requests']:8} "
        f"{first['p50']:9.1f} {first['p99']:9.1f} {first['p99.9']:9.1f} "
        f"{row['mean_gpus']:9.1f} {row['most_gpus']:6} {row['starts']:7} "
        f"{row['waited_for_gpu']:7} {row['usd_per_hour']:10.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--hours", type=float, default=2.0, help="of up to 500 models")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of a burst")
    parser.add_argument("--platform-seconds", type=float, default=1.0, help="assumed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--breaks", action="store_true", help="many models wake at once")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    print(
        "models  subject                  requests    p50 ms    p99 ms  p99.9 ms mean GPUs   most"
        "  starts  no GPU  $ an hour"
    )
    found = (breaks if options.breaks else compare)(options)
    report = {"subject": "fleet", "date": time.strftime("%Y-%m-%d"), "seed": options.seed,
              "platform_seconds": options.platform_seconds, "usd_per_gpu_hour": usd_per_hour(),
              "results": found}  # fmt: skip
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
