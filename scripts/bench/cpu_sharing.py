"""How fast a CPU decodes where it has its cores for itself, shares them, or is limited by a quota.

    python scripts/bench/cpu_sharing.py MODEL.zse --output 32 --rounds 5

Three situations: alone, beside one busy process a core, and under a quota of one core (a control
group; needs root). In each, what zse chooses by itself is compared with what one could set by hand:
one thread, OpenMP's own waiting, and threads that never spin. The settings alternate, round by
round, so that other work on the machine hurts all of them alike; the best round of each counts.
The last line is one JSON object. ``share_of_best`` is zse's rate over the best of the situation.

``--shares`` puts the whole benchmark into a control group of so many CPU shares, which keeps other
work of a busy machine off its back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from control_group import ControlGroup, busy_neighbours
from machine import machine_facts

from zse.settings import subprocess_environment

SETTINGS: dict[str, dict[str, str]] = {
    "as zse chooses": {},
    "one thread": {"ZSE_THREADS": "1"},
    "OpenMP's own waiting": {"GOMP_SPINCOUNT": "300000"},  # libgomp's default
    "never spinning": {"OMP_WAIT_POLICY": "passive"},
    "short spinning": {"GOMP_SPINCOUNT": "500"},
    "long spinning": {"GOMP_SPINCOUNT": "20000"},
}


def decode_rate(
    group: ControlGroup, model: str, output_tokens: int, extra: dict[str, str]
) -> float:
    """Return tokens a second of one sequence in a process of its own."""
    environment = subprocess_environment(**extra)
    command = group.command(
        sys.executable, "-m", "zse", "benchmark", model, "--device", "cpu", "--json",
        "--prompt-tokens", "32", "--output-tokens", str(output_tokens),
    )  # fmt: skip
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(run.stdout)["decode_tokens_per_second"])


def measure(group: ControlGroup, options: argparse.Namespace) -> dict[str, float]:
    """Return each setting's best rate, in tokens a second, in the situation that holds now."""
    best = dict.fromkeys(SETTINGS, 0.0)
    for _ in range(options.rounds):
        for name, extra in SETTINGS.items():
            best[name] = max(best[name], decode_rate(group, options.model, options.output, extra))
    return {name: round(rate, 2) for name, rate in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--output", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=int, default=1024, help="CPU shares of the benchmark")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    group = ControlGroup()
    results: dict[str, dict[str, float]] = {}
    try:
        group.set_shares(options.shares)
        results["alone"] = measure(group, options)
        with busy_neighbours(group, cores):
            results[f"{cores} busy neighbours"] = measure(group, options)
        group.set_quota(1.0)
        results["a quota of one core"] = measure(group, options)
    finally:
        group.close()
    shares = {
        situation: round(rates["as zse chooses"] / max(rates.values()), 3)
        for situation, rates in results.items()
    }
    print_table(results, shares)
    report = {
        "subject": "cpu_sharing",
        "model": options.model,
        **machine_facts(),
        "rounds": options.rounds,
        "decode_tokens_per_second": results,
        "share_of_best": shares,
    }
    print(json.dumps(report))


def print_table(results: dict[str, dict[str, float]], shares: dict[str, float]) -> None:
    print(f"{'tokens/s':24}" + "".join(f"{situation:>24}" for situation in results))
    for name in SETTINGS:
        row = (f"{rates[name]:>24.1f}" for rates in results.values())
        print(f"{name:24}" + "".join(row))
    print(
        f"{'zse, share of the best':24}" + "".join(f"{share:>24.2f}" for share in shares.values())
    )


if __name__ == "__main__":
    main()
