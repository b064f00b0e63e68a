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
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine_facts

from zse.errors import UsageError
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS: dict[str, dict[str, str]] = {
    "as zse chooses": {},
    "one thread": {"ZSE_THREADS": "1"},
    "OpenMP's own waiting": {"GOMP_SPINCOUNT": "300000"},  # libgomp's default
    "never spinning": {"OMP_WAIT_POLICY": "passive"},
    "short spinning": {"GOMP_SPINCOUNT": "500"},
    "long spinning": {"GOMP_SPINCOUNT": "20000"},
}
LEGACY_CPU = Path("/sys/fs/cgroup/cpu")
UNIFIED = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000


class ControlGroup:
    """A control group of this benchmark's own, of either version; gone when closed."""

    def __init__(self) -> None:
        self._is_legacy = (LEGACY_CPU / "cpu.cfs_quota_us").exists() or LEGACY_CPU.is_dir()
        self._folder = (LEGACY_CPU if self._is_legacy else UNIFIED) / f"zse-bench-{os.getpid()}"
        try:
            self._folder.mkdir()
        except OSError as error:
            raise UsageError(
                f"no control group can be made: {error}", hint="Run as root."
            ) from error

    def set_quota(self, cores: float) -> None:
        """Limit the group to so many cores' worth of time; 0 takes the limit away."""
        quota = int(cores * PERIOD_MICROSECONDS)
        if self._is_legacy:
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota or -1))
        else:
            (self._folder / "cpu.max").write_text(f"{quota or 'max'} {PERIOD_MICROSECONDS}")

    def set_shares(self, shares: int) -> None:
        """Weigh the group against others; 1024 is usual."""
        if self._is_legacy:
            (self._folder / "cpu.shares").write_text(str(shares))
        else:
            (self._folder / "cpu.weight").write_text(str(max(1, min(10000, shares // 10))))

    def command(self, *words: str) -> list[str]:
        """Return a command that runs ``words`` in this group."""
        script = f'echo $$ > {self._folder}/cgroup.procs && exec "$@"'
        return ["sh", "-c", script, "sh", *words]

    def close(self) -> None:
        self._folder.rmdir()


@contextlib.contextmanager
def busy_neighbours(group: ControlGroup, count: int) -> Iterator[None]:
    """Keep ``count`` processes busy for as long as the context lasts."""
    command = group.command(sys.executable, "-c", "while True: pass")
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


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
