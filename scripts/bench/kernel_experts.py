"""Kernels of mixtures of experts on the GPU at hand: errors, microseconds, and what memory allows.

    python scripts/bench/kernel_experts.py --pack sm_90.zkp                # ends with one JSON line
    python scripts/bench/kernel_experts.py --pack sm_90.zkp --sweep        # and every other form
    python scripts/bench/kernel_experts.py --build-pack build/experts.zkp  # no GPU needed

The layers of Qwen3-30B-A3B, Qwen3.6-35B-A3B and gpt-oss-20b: a token's way through them, small
batches, and a prompt. Needs torch with CUDA, and triton unless ``--pack`` names a pack that holds
what is timed; with ``--sweep`` that is one of ``--build-pack``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernel_variants import direct_sweep, grouped_sweep, pair_sweep
from kernels import CACHE, Report, open_launcher
from machine import machine_facts

from zse.kernels.build.builder import build_pack
from zse.kernels.experts import variants as experts
from zse.kernels.gate_up import variants as gate_up
from zse.kernels.route import variants as route
from zse.kernels.targets import target_named

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
FORMATS = (("int4", 128), ("mxfp4", 32))


def everything() -> tuple[Variant, ...]:
    found = [*route.VARIANTS, *experts.VARIANTS, *gate_up.VARIANTS]
    for scheme, group in FORMATS:
        found += grouped_sweep(scheme, group) + pair_sweep(scheme, group) + direct_sweep(scheme)
    return tuple(dict.fromkeys(found))


def build(path: Path) -> None:
    built = build_pack(
        target_named("sm_90"), everything(), source_digest="bench", cache_dir=CACHE,
        keep_going=True,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(built.data)
    print(f"{len(built.kernels)} kernels, {built.seconds:.0f} s; failed: {list(built.failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--build-pack", type=Path)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--jit", action="store_true", help="compile on the spot, by Triton")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "experts.jsonl")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="regular expression of the parts to run")
    options = parser.parse_args()
    if options.build_pack:
        build(options.build_pack)
        return
    import torch
    from expert_cases import SHAPES
    from expert_timing import Layer

    report = Report(options.results, options.seconds, options.only)
    launcher = open_launcher(options.pack, jit=options.jit)
    figures: dict[str, float] = {}
    for name, shape in SHAPES.items():
        layer = Layer(launcher, report, name, shape, figures, sweeps=options.sweep)
        for rows in (1, 2, 4):
            report.part(f"{name} {rows}", lambda rows=rows, layer=layer: layer.few(rows))
        for rows in (8, 32, 128):
            report.part(f"{name} {rows} direct", lambda rows=rows, layer=layer: layer.some(rows))
        for rows in (8, 32, 128, 512, 2048):
            report.part(f"{name} {rows}", lambda rows=rows, layer=layer: layer.many(rows))
        del layer
        torch.cuda.empty_cache()
    facts = {**machine_facts(), "device": torch.cuda.get_device_name(0)}
    print(json.dumps({"benchmark": "kernel_experts", **facts, **figures}))
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
