"""Norm, activation and attention kernels on the GPU at hand: errors and microseconds.

    python scripts/bench/attention.py                      # table, ends with one JSON line
    python scripts/bench/attention.py --sweep              # compare compiled forms
    python scripts/bench/attention.py --build-pack build/attention/sm_90.zkp   # no GPU needed
    python scripts/bench/attention.py --pack build/attention/sm_90.zkp

Needs torch with CUDA, and triton unless ``--pack`` names a pack that holds what is timed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from attention_families import families, gated_tuning, wide_tuning
from machine import machine_facts

from zse.errors import ZSEError
from zse.kernels.attention import variants as attention
from zse.kernels.attention.variants import (
    DecodeForm,
    PrefillForm,
    decode_variant,
    prefill_variant,
)
from zse.kernels.gate_up import variants as gate_up
from zse.kernels.layout import HeadShape
from zse.kernels.norm import variants as norm
from zse.kernels.norm.variants import residual_norm_variant, row_groups_for
from zse.kernels.rope_store import variants as rope_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.kernels.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
FAILURES = (ZSEError, RuntimeError, ValueError, TypeError, AssertionError)
QWEN_7B = HeadShape(num_heads=28, kv_heads=4, head_dim=128)
QWEN_32B = HeadShape(num_heads=40, kv_heads=8, head_dim=128)
SMALL = HeadShape(num_heads=14, kv_heads=2, head_dim=64)
DECODE_FORM = DecodeForm(head_dim=128, quantized_output=True)
DECODE_TUNING = ((32, 4, 3), (32, 4, 5), (64, 4, 2), (64, 4, 3), (64, 8, 3))
"""Tile, warps, stages."""
PREFILL_TUNING = (
    (128, 64, 8, 2),
    (128, 64, 8, 3),
    (128, 128, 8, 2),
    (64, 64, 4, 2),
    (64, 64, 4, 3),
)
"""Queries, tokens, warps, stages."""
MAX_ERROR = 2e-2
"""Largest error over largest value, with int8 outputs or an int8 cache."""
NORM_WARPS = (8, 16, 32)


def decode_tuning(form: DecodeForm = DECODE_FORM) -> dict[str, Variant]:
    return {
        f"tile {tile} warps {warps} stages {stages}": decode_variant(
            form, tile=tile, num_warps=warps, num_stages=stages
        )
        for tile, warps, stages in DECODE_TUNING
    }


def prefill_tuning() -> dict[tuple[int, int, int, int], Variant]:
    return {
        choice: prefill_variant(
            PrefillForm(head_dim=128, queries=choice[0], tokens=choice[1]),
            num_warps=choice[2],
            num_stages=choice[3],
        )
        for choice in PREFILL_TUNING
    }


def everything() -> list[Variant]:
    """Return what a pack for this benchmark holds."""
    wanted = [
        *norm.VARIANTS,
        *gate_up.VARIANTS,
        *(v for v in rope_store.VARIANTS if "HEAD_DIM=128" in v.key),
        *(v for v in attention.VARIANTS if re.search("HEAD_DIM=(64|128|256|512)", v.key)),
        *decode_tuning().values(),
        *prefill_tuning().values(),
        *wide_tuning().values(),
        *gated_tuning().values(),
        *(
            residual_norm_variant(row_groups_for(3584), quantized=True, gather=False, num_warps=w)
            for w in NORM_WARPS
        ),
    ]
    return list({variant.key: variant for variant in wanted}.values())


class Report:
    """Figures by name, printed as they come, until the time is up."""

    def __init__(self, seconds: float, only: str) -> None:
        self.figures: dict[str, float] = {}
        self.failed: list[str] = []
        self._end, self._only = time.monotonic() + seconds, re.compile(only)

    def part(self, name: str, work: Callable[[], dict[str, float]]) -> None:
        """Run one part; say what broke and go on."""
        if not self._only.search(name) or time.monotonic() > self._end:
            return
        try:
            found = work()
        except FAILURES:
            self.failed.append(name)
            print(f"{name:44s} FAILED\n{traceback.format_exc(limit=-4)}", flush=True)
            return
        is_near = found.get("error", 0.0) <= MAX_ERROR  # what is no number is not
        if not is_near or found.get("rows that differ alone"):
            self.failed.append(name)
        text = "  ".join(f"{unit} {value:.4g}" for unit, value in found.items())
        print(f"{name:44s} {text}", flush=True)
        self.figures |= {f"{name} {unit}": float(f"{v:.4g}") for unit, v in found.items()}


def norms(launcher, report: Report, *, sweep: bool) -> None:
    import torch
    from attention_cases import CUDA, make_output, relative_error
    from gpu_timing import graph_us

    from zse.kernels.layout import Partials
    from zse.kernels.norm.launch import residual_norm

    def run(rows: int, hidden: int, splits: int, quantized: bool, tuned=None) -> dict[str, float]:
        stream, weight = torch.randn(rows, hidden, device=CUDA), torch.randn(hidden, device=CUDA)
        added = torch.randn(splits, rows, hidden, device=CUDA) * 0.01
        output = make_output(rows, hidden, quantized=quantized)
        pending = Partials(rows=rows, columns=hidden, splits=splits, values=added.data_ptr())
        wanted = stream + added.sum(0)

        def call() -> None:
            residual_norm(
                launcher, stream.data_ptr(), rows, hidden, weight.data_ptr(), 1e-6, output.buffer,
                added=pending, tuned=tuned,
            )  # fmt: skip

        call()
        expected = torch.nn.functional.rms_norm(wanted, (hidden,), weight, 1e-6)
        error = relative_error(output.read(), expected)
        return {"us": graph_us([call]), "error": error}

    for rows, hidden in ((1, 3584), (1, 5120), (1, 8192), (8, 3584), (32, 3584), (128, 3584)):
        for splits in (1, 4) if rows == 1 else (2,):
            report.part(
                f"norm rows {rows} hidden {hidden} splits {splits}",
                lambda r=rows, h=hidden, s=splits: run(r, h, s, True),
            )
    report.part("norm rows 2048 hidden 3584 bf16", lambda: run(2048, 3584, 1, False))
    if sweep:
        for warps in NORM_WARPS:
            tuned = residual_norm_variant(32, quantized=True, gather=False, num_warps=warps)
            for splits in (1, 4):
                report.part(
                    f"norm hidden 3584 splits {splits} warps {warps}",
                    lambda t=tuned, s=splits: run(1, 3584, s, True, t),
                )


def activations(launcher, report: Report) -> None:
    import torch
    from attention_cases import CUDA, make_output, relative_error
    from gpu_timing import graph_us

    from zse.kernels.gate_up.launch import activate
    from zse.kernels.layout import Partials, Plain

    def run(rows: int, width: int, quantized: bool) -> dict[str, float]:
        joined = torch.randn(rows, 2 * width, device=CUDA)
        if not quantized:
            joined = joined.bfloat16()
        output = make_output(rows, width, quantized=quantized)
        summed = Partials(rows=rows, columns=2 * width, splits=1, values=joined.data_ptr())
        plain = Plain(rows=rows, columns=2 * width, values=joined.data_ptr())

        def call() -> None:
            activate(launcher, summed if quantized else plain, output.buffer)

        call()
        gate, up = joined.float().chunk(2, -1)
        expected = torch.nn.functional.silu(gate) * up
        return {"us": graph_us([call]), "error": relative_error(output.read(), expected)}

    for rows in (1, 8, 32, 128):
        report.part(f"silu rows {rows} width 18944", lambda r=rows: run(r, 18944, True))
    report.part("silu rows 2048 width 18944 bf16", lambda: run(2048, 18944, False))


def decode_checks(launcher, report: Report) -> None:
    """Compare the decode attention with torch where things go wrong."""
    from attention_cases import DecodeCase, WideCase

    cases: dict[str, dict[str, object]] = {
        "ragged": {"shape": QWEN_7B, "lengths": [1, 2, 31, 32, 33, 64, 65, 700, 1500]},
        "ragged bf16 out": {"shape": QWEN_7B, "lengths": [1, 64, 900], "quantized_output": False},
        "int8 cache": {"shape": QWEN_7B, "lengths": [1, 33, 700], "cache": "int8"},
        "int4 cache": {"shape": QWEN_7B, "lengths": [1, 33, 700], "cache": "int4"},
        "window": {"shape": QWEN_7B, "lengths": [1, 99, 700], "window": 70},
        "one split": {"shape": QWEN_7B, "lengths": [5, 300], "splits": 1},
        "seven splits of the product": {"shape": QWEN_7B, "lengths": [300], "qkv_splits": 7},
        "32b": {"shape": QWEN_32B, "lengths": [5, 800], "bias": False},
        "head_dim 64": {"shape": SMALL, "lengths": [5, 800], "quantized_output": False},
        "head_dim 64 int8": {"shape": SMALL, "lengths": [5, 800], "cache": "int8",
                             "quantized_output": False},
        "long": {"shape": QWEN_7B, "lengths": [32768]},
    }  # fmt: skip
    for name, options in cases.items():
        arguments = {key: value for key, value in options.items() if key != "shape"}

        def run(shape=options["shape"], arguments=arguments) -> dict[str, float]:
            return {"error": DecodeCase(launcher, shape, layers=1, **arguments).error()}

        report.part(f"check decode {name}", run)
    lengths = [1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 257, 700, 1500]
    wide: dict[str, dict[str, Any]] = {
        "7b": {"shape": QWEN_7B},
        "32b, bf16 out": {"shape": QWEN_32B, "quantized_output": False},
        "eight heads a key": {"shape": HeadShape(num_heads=16, kv_heads=2, head_dim=128)},
        "window": {"shape": QWEN_7B, "window": 70},
        "fewer rows": {"shape": QWEN_7B, "splits": 2},
    }
    for name, arguments in wide.items():

        def run_wide(arguments: dict[str, Any] = arguments) -> dict[str, float]:
            case = WideCase(launcher, lengths=lengths, layers=1, **{"splits": 1, **arguments})
            error = case.error()
            return {"error": error, "rows that differ alone": len(case.rows_that_differ_alone())}

        report.part(f"check decode of many rows, int8 cache, {name}", run_wide)


def decodes(launcher, report: Report, *, sweep: bool) -> None:
    from attention_cases import DecodeCase, WideCase

    def run(rows: int, context: int, splits: int = 0, tuned=None, **rest) -> dict[str, float]:
        case = DecodeCase(launcher, QWEN_7B, [context] * rows, splits=splits, **rest)
        us = case.microseconds(tuned)
        return {"us": us, "TB/s": case.cache_bytes / us / 1e6, "splits": case.splits}

    for rows in (1, 8, 32, 128):
        for context in (384, 4096, 32768):
            if rows * context <= 600_000:
                report.part(
                    f"decode rows {rows} context {context}",
                    lambda r=rows, c=context: run(r, c),
                )
    for rows, context in ((1, 384), (1, 4096), (1, 30000), (8, 30000), (32, 4096)):
        for cache in ("bf16", "int8", "int4"):
            report.part(
                f"decode {cache} cache rows {rows} context {context}",
                lambda r=rows, c=context, d=cache: run(r, c, cache=d),
            )

    def run_wide(rows: int, context: int) -> dict[str, float]:
        case = WideCase(launcher, QWEN_7B, [context] * rows)
        us = case.microseconds()
        return {"us": us, "TB/s": case.cache_bytes / us / 1e6}

    for rows, context in ((64, 576), (64, 1500), (128, 576), (128, 1500), (256, 576), (256, 1500)):
        report.part(
            f"decode bf16 cache rows {rows} context {context}",
            lambda r=rows, c=context: run(r, c),
        )
        report.part(
            f"decode int8 cache rows {rows} context {context}",
            lambda r=rows, c=context: run(r, c, cache="int8"),
        )
        report.part(
            f"decode of many rows, int8 cache, rows {rows} context {context}",
            lambda r=rows, c=context: run_wide(r, c),
        )
    if not sweep:
        return
    for rows, context, choices in (
        (1, 384, (16, 32, 64)),
        (1, 4096, (16, 32, 48, 64)),
        (1, 32768, (32, 64)),
        (8, 4096, (4, 8, 16)),
        (32, 4096, (1, 2, 4)),
        (128, 512, (1, 2)),
    ):
        for name, tuned in decode_tuning().items():
            for splits in choices:
                report.part(
                    f"decode {rows}x{context} {name} splits {splits}",
                    lambda r=rows, c=context, s=splits, t=tuned: run(r, c, s, t),
                )
    for rows, context in ((128, 640), (256, 1500)):
        for cache in ("bf16", "int8"):
            form = replace(DECODE_FORM, cache=cache)
            for name, tuned in decode_tuning(form).items():
                report.part(
                    f"wide {cache} cache {rows}x{context} {name}",
                    lambda r=rows, c=context, d=cache, t=tuned: run(r, c, 1, t, cache=d),
                )


def prefills(launcher, report: Report, *, sweep: bool) -> None:
    from attention_cases import PrefillCase

    def check(chunks: Iterable[tuple[int, int]], **options) -> dict[str, float]:
        return {"error": PrefillCase(launcher, QWEN_7B, list(chunks), **options).error()}

    report.part("check prefill ragged", lambda: check([(0, 1), (37, 300), (0, 129), (500, 64)]))
    report.part("check prefill window", lambda: check([(0, 300), (400, 77)], window=100))
    report.part("check prefill int8 cache", lambda: check([(0, 300), (400, 77)], cache="int8"))
    report.part("check prefill int4 cache", lambda: check([(0, 300), (400, 77)], cache="int4"))

    def run(chunks: Iterable[tuple[int, int]], tuned=None, **options) -> dict[str, float]:
        case = PrefillCase(launcher, QWEN_7B, list(chunks), **options)
        error = case.error(tuned) if sum(count for _, count in chunks) <= 2048 else 0.0
        us = case.microseconds(tuned)
        return {"us": us, "TFLOP/s": case.flops / us / 1e6, "error": error}

    for tokens in (128, 2048, 8192):
        report.part(f"prefill {tokens}", lambda t=tokens: run([(0, t)]))
    report.part("prefill 2048 after 6144", lambda: run([(6144, 2048)]))
    for cache in ("bf16", "int8", "int4"):
        report.part(f"prefill 8192 {cache} cache", lambda c=cache: run([(0, 8192)], cache=c))
        chunk = [(27952, 2048)]
        report.part(
            f"prefill 2048 after 27952 {cache} cache", lambda c=cache, k=chunk: run(k, cache=c)
        )
    if sweep:
        for choice, tuned in prefill_tuning().items():
            for tokens in (2048, 8192):
                report.part(
                    f"prefill {tokens} queries, tokens, warps, stages {choice}",
                    lambda t=tokens, v=tuned, q=choice[0]: run([(0, t)], v, queries=q),
                )


def build(path: Path) -> None:
    from zse.kernels.build.builder import build_pack
    from zse.kernels.targets import target_named

    built = build_pack(
        target_named("sm_90"),
        everything(),
        source_digest="bench",
        cache_dir=ROOT / "build" / "triton",
        keep_going=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(built.data)
    print(f"{len(built.kernels)} kernels, {built.seconds:.0f} s; failed: {list(built.failed)}")


def open_launcher(pack_path: Path | None):
    """Return a launcher of a pack, or of Triton's own compiler."""

    if pack_path is None:
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        from jit_launcher import JitLauncher

        return JitLauncher()

    from gpu_timing import pack_launcher

    return pack_launcher(pack_path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pack", type=Path, help="without one, kernels are compiled on the spot")
    parser.add_argument("--build-pack", type=Path)
    parser.add_argument("--sweep", action="store_true", help="compare compiled forms")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="regular expression of the parts to run")
    options = parser.parse_args()
    if options.build_pack:
        build(options.build_pack)
        return
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    report = Report(options.seconds, options.only)
    launcher = open_launcher(options.pack)
    decode_checks(launcher, report)
    norms(launcher, report, sweep=options.sweep)
    activations(launcher, report)
    decodes(launcher, report, sweep=options.sweep)
    prefills(launcher, report, sweep=options.sweep)
    families(launcher, report, sweep=options.sweep)
    facts = {**machine_facts(), "gpu": torch.cuda.get_device_name(0), "failed": report.failed}
    print(json.dumps({"benchmark": "attention", **facts, **report.figures}))
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
