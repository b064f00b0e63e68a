"""Matrix kernels on the GPU at hand: errors, microseconds, and the same beside peers.

    python scripts/bench/kernels.py                 # table beside peers, ends with one JSON line
    python scripts/bench/kernels.py --sweep         # best form and splits of each shape
    python scripts/bench/kernels.py --build-pack build/sweep/sm_90.zkp   # no GPU needed

Needs torch with CUDA, and triton unless ``--pack`` names a pack that holds what is timed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from typing import TYPE_CHECKING  # noqa: E402

from kernel_variants import (  # noqa: E402
    decode_sweep,
    dot_sweep,
    everything,
    imma_sweep,
)
from machine import machine_facts  # noqa: E402

from zse.kernels.build.builder import build_pack  # noqa: E402
from zse.kernels.targets import target_named  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = ROOT / "build" / "triton"


class Report:
    """Results, written as they come, until the time is up."""

    def __init__(self, path: Path, seconds: float, only: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._end = time.monotonic() + seconds
        self._only = re.compile(only)
        self.failed = False

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self._end

    def add(self, **row: object) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Run one part; say what broke and go on."""
        if not self._only.match(name):
            return
        started = time.monotonic()
        try:
            if self.has_time:
                work()
        except Exception as error:  # noqa: BLE001
            self.failed = True
            traceback.print_exc()
            self.add(part=name, failed=f"{type(error).__name__}: {error}"[:2000])
        print(f"-- {name}: {time.monotonic() - started:.1f} s", flush=True)


def open_launcher(pack_path: Path | None, *, jit: bool = False):
    """Return a launcher over torch's stream: of a pack, of one built on the spot, or Triton's."""
    from gpu_timing import pack_launcher

    if jit:
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        from jit_launcher import JitLauncher

        return JitLauncher()

    if pack_path is None:
        pack_path = ROOT / "build" / "kernels.zkp"
        build(pack_path)
    return pack_launcher(pack_path)


def build(path: Path) -> None:
    built = build_pack(
        target_named("sm_90"),
        everything(),
        source_digest="bench",
        cache_dir=CACHE,
        keep_going=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(built.data)
    print(f"{len(built.kernels)} kernels, {built.seconds:.0f} s; failed: {list(built.failed)}")


def sweep_rows(launcher, report: Report, table: str, name: str, case, variants, rows: int) -> None:
    """Time every form and number of splits at one shape; print the best."""
    from kernel_cases import error_of, splits_for, time_plan

    from zse.kernels.linear.plan import LinearPlan, table_name

    shape = f"{case.matrix.weight.columns}x{case.matrix.weight.rows}"
    results = []
    for variant in variants:
        try:
            error = error_of(launcher, case, variant, rows, splits_for(variant, case, rows)[-1])
            for splits in splits_for(variant, case, rows):
                if not report.has_time:
                    return
                plan = LinearPlan(
                    variant=variant, splits=splits, rows=rows, columns=case.matrix.weight.rows
                )
                us = time_plan(launcher, case, plan)
                results.append((us, splits, variant.key, error))
                report.add(
                    table=table_name(case.matrix.weight, rows, quantized=table == "a8"),
                    shape=shape,
                    rows=rows,
                    variant=variant.key,
                    splits=splits,
                    microseconds=round(us, 2),
                    relative_error=float(f"{error:.3g}"),
                )
        except Exception as error:  # noqa: BLE001
            print("FAILED", variant.key, str(error)[:300], flush=True)
            report.add(variant=variant.key, shape=shape, failed=str(error)[:500])
    results.sort()
    size = case.matrix.weight.size_bytes
    for us, splits, key, error in results[:4]:
        print(
            f"{name:8s} {shape:12s} rows {rows:3d} {us:8.2f} us {size / us / 1e6:5.2f} TB/s "
            f"splits {splits:2d} error {error:.1e} {key}",
            flush=True,
        )


def sweep(launcher, report: Report, model: str) -> None:
    from kernel_cases import SHAPES, make_case

    shapes = SHAPES[model]

    def run(name, scheme, group, variants_of, table, rows_list):
        columns, n = shapes[name]
        case = make_case(scheme, group, columns, n)
        for rows in rows_list:
            sweep_rows(launcher, report, table, name, case, variants_of(scheme, group, rows), rows)

    from kernel_checks import check, prefill

    report.part("check", lambda: check(launcher, report))
    report.part("smoke", lambda: run("o", "int4", 128, lambda *a: decode_sweep(*a)[:1], "a8", (1,)))
    for name in ("gate_up", "down", "qkv", "o"):
        report.part(f"int4 {name}", lambda n=name: run(n, "int4", 128, decode_sweep, "a8", (1,)))
    if "lm_head" in shapes:
        report.part("int8 lm_head", lambda: run("lm_head", "int8", 0, decode_sweep, "a8", (1,)))
    for name in ("gate_up", "down", "qkv", "o"):
        report.part(
            f"batch a8 {name}",
            lambda n=name: run(n, "int4", 128, imma_sweep, "a8", (8, 16, 32, 64)),
        )
    report.part("prefill", lambda: prefill(launcher, report))
    for name in ("gate_up", "down"):
        report.part(f"few {name}", lambda n=name: run(n, "int4", 128, decode_sweep, "a8", (2, 4)))
        report.part(
            f"batch a16 {name}",
            lambda n=name: run(n, "int4", 128, dot_sweep, "a16", (1, 16, 32, 64, 128, 256)),
        )
    for scheme, group, table in (
        ("nf4", 64, "a8"),
        ("bf16", 0, "a16"),
        ("int8", 0, "a8"),
        ("int4", 64, "a8"),
    ):
        for name in ("gate_up", "down", "qkv", "o"):
            report.part(
                f"rest {scheme} {name}",
                lambda n=name, s=scheme, g=group, t=table: run(n, s, g, decode_sweep, t, (1,)),
            )


def peers_table(launcher, report: Report) -> dict[str, float]:
    """Time ours beside the peers that can be imported, one token; return microseconds by name."""
    import torch
    from kernel_cases import SHAPES, error_of, make_case, time_plan
    from kernel_peers import PEERS, time_peer

    from zse.kernels.linear.plan import plan_linear
    from zse.kernels.tuning import Tuning

    tuning = Tuning.load(torch.cuda.get_device_name(0))
    found: dict[str, float] = {}
    for model, shapes in SHAPES.items():
        for name, (columns, n) in shapes.items():
            scheme, group = ("int8", 0) if name == "lm_head" else ("int4", 128)
            case = make_case(scheme, group, columns, n)
            plan = plan_linear(
                case.matrix.weight, 1, quantized=True, device=launcher.device, tuning=tuning
            )
            error = error_of(launcher, case, plan.variant, 1, plan.splits)
            us = time_plan(launcher, case, plan)
            row = {"zse": us}
            del case
            torch.cuda.empty_cache()
            for peer in PEERS:
                try:
                    row[peer] = time_peer(peer, columns, n)
                except Exception as failure:  # noqa: BLE001
                    report.add(peer=peer, failed=str(failure)[:200])
                torch.cuda.empty_cache()
            text = "  ".join(f"{peer} {value:.1f}" for peer, value in row.items())
            print(
                f"{model} {name:8s} {columns}x{n} {scheme} error {error:.1e}  us: {text}",
                flush=True,
            )
            report.add(model=model, name=name, relative_error=error, microseconds=row)
            found.update({f"{model}_{name}_{peer}_us": round(v, 2) for peer, v in row.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--model", default="7b", choices=("7b", "32b"))
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--jit", action="store_true", help="compile as Triton does, no pack")
    parser.add_argument("--build-pack", type=Path)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "kernels.jsonl")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="", help="regular expression of the parts to run")
    options = parser.parse_args()
    if options.build_pack:
        build(options.build_pack)
        return
    import torch

    report = Report(options.results, options.seconds, options.only)
    launcher = open_launcher(options.pack, jit=options.jit)
    figures: dict[str, float] = {}
    if options.sweep:
        sweep(launcher, report, options.model)
    else:
        report.part("peers", lambda: figures.update(peers_table(launcher, report)))
    facts = {**machine_facts(), "device": torch.cuda.get_device_name(0)}
    print(json.dumps({"benchmark": "kernels", **facts, **figures}))
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
