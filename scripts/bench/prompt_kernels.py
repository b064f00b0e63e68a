"""Kernels of prompts and of wide batches at a 7B's shapes: compiled forms beside each other.

    python scripts/bench/prompt_kernels.py                  # builds a pack of the forms, times them
    python scripts/bench/prompt_kernels.py --only 'few|silu'

Products are held against torch's of the same bytes, attention over lines against the one over
pages. Needs torch with CUDA, triton and a few processors. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from machine import machine_facts

from zse.kernels.attention import variants as attention
from zse.kernels.gate_up.variants import silu_mul_variant
from zse.kernels.layout import HeadShape, Partials, Plain, Turned
from zse.kernels.linear.definitions import MATMUL_8BIT_SPLIT, MATMUL_8BIT_STREAM
from zse.kernels.linear.variants import matmul_8bit, turn_tokens
from zse.kernels.turned.variants import turned_norm_variant, turned_silu_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.kernels.variant import Variant

MATRICES = {
    "qkv": (4608, 3584),
    "o": (3584, 3584),
    "gate_up": (37888, 3584),
    "down": (3584, 18944),
}
HIDDEN, WIDTH = 3584, 18944
QWEN_7B = HeadShape(num_heads=28, kv_heads=4, head_dim=128)
MANY_FORMS = [
    ("stream", {"bm": 256, "bn": 128, "stages": 3}),
    ("stream", {"bm": 256, "bn": 128, "stages": 4}),
    ("stream", {"bm": 128, "bn": 256, "stages": 3}),
    ("stream", {"bm": 128, "bn": 128, "stages": 4}),
    ("plain", {"bm": 128, "bn": 128, "stages": 3}),
    ("split", {"bm": 128, "bn": 256, "stages": 3}),
    ("split", {"bm": 128, "bn": 128, "stages": 3}),
]
FEW_FORMS = [
    {"bm": 128, "bn": 128, "stages": 3},
    {"bm": 128, "bn": 128, "stages": 4},
    {"bm": 128, "bn": 64, "stages": 4},
    {"bm": 64, "bn": 128, "stages": 4, "warps": 4},
    {"bm": 256, "bn": 128, "stages": 3},
]
CONTEXTS = [
    (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (64, 32, 4, 3), (128, 64, 8, 2),
    (128, 64, 8, 3), (128, 128, 8, 2),
]  # fmt: skip
"""Queries, tokens, warps, stages."""


def many_forms(output: str) -> Iterator[Variant]:
    for kind, options in MANY_FORMS:
        kernels = {"stream": MATMUL_8BIT_STREAM, "split": MATMUL_8BIT_SPLIT}
        own = {"kernel": kernels[kind]} if kind in kernels else {}
        yield matmul_8bit(output, **options, **own)


def few_forms(output: str) -> list[Variant]:
    return [matmul_8bit(output, **options, kernel=MATMUL_8BIT_SPLIT) for options in FEW_FORMS]


def everything() -> list[Variant]:
    found = [*many_forms("bf16"), *many_forms("fp32"), *few_forms("fp32"), *few_forms("bf16")]
    found += [turned_silu_variant(256, num_warps=warps) for warps in (8, 16, 32)]
    found += [turned_norm_variant(32, num_warps=warps) for warps in (4, 8, 16)]
    found += [silu_mul_variant(8, element="bf16", quantized=False)]
    found += [turn_tokens(columns) for columns in (HIDDEN, WIDTH)]
    found += [
        attention.context_variant(128, tokens, queries=queries, num_warps=warps, num_stages=stages)
        for queries, tokens, warps, stages in CONTEXTS
    ]
    found += [attention.gather_context_variant(128, cache) for cache in ("bf16", "int8", "int4")]
    found.append(attention.prefill_variant(attention.PrefillForm(head_dim=128)))
    return list({variant.key: variant for variant in found}.values())


class Report:
    """Figures by name, printed as they come, until the time is up."""

    def __init__(self, seconds: float, only: str) -> None:
        self.figures: dict[str, Any] = {}
        self._end, self._only = time.monotonic() + seconds, re.compile(only)

    def part(self, name: str, work: Callable[[], dict[str, float]]) -> None:
        if not self._only.search(name) or time.monotonic() > self._end:
            return
        try:
            found = work()
        except Exception:  # noqa: BLE001 - a form that does not run is a result
            print(f"{name:70s} FAILED {traceback.format_exc(limit=-1)[-160:]!r}", flush=True)
            return
        text = "  ".join(f"{unit} {value:.4g}" for unit, value in found.items())
        print(f"{name:70s} {text}", flush=True)
        self.figures[name] = {unit: float(f"{value:.4g}") for unit, value in found.items()}


def products(launcher: Any, report: Report) -> None:
    for tokens in (8192, 2048, 512, 256, 128, 64):
        for name in MATRICES:
            if (tokens, name) != (512, "qkv"):
                forms_of_product(launcher, report, tokens, name)


def forms_of_product(launcher: Any, report: Report, tokens: int, name: str) -> None:
    import torch

    rows, columns = MATRICES[name]
    values, weights = (
        torch.randint(-99, 99, (count, columns), dtype=torch.int8, device="cuda")
        for count in (tokens, rows)
    )
    scales = torch.rand(max(rows, tokens), device="cuda") + 0.5
    wanted = torch._int_mm(values, weights.T).float()
    wanted *= scales[:tokens, None] * scales[None, :rows]
    output = "bf16" if name == "gate_up" else "fp32"
    for form in list(many_forms(output)) if tokens > 256 else few_forms(output):
        is_split = form.kernel is MATMUL_8BIT_SPLIT and tokens <= 512 and output == "fp32"
        for splits in (2, 4, 8) if is_split else (1,):
            constants = dict(form.constants)
            kind = form.kernel.name.removeprefix("linear.matmul_8bit").strip("_") or "plain"
            sizes = "x".join(str(constants[each]) for each in ("BM", "BN", "STAGES"))
            few = "few" if tokens <= 256 else "many"
            work = partial(time_product, launcher, form, splits, values, weights, scales, wanted)
            report.part(f"product {few} {tokens} {name} {kind} {sizes} /{splits}", work)


def time_product(
    launcher: Any, form: Variant, splits: int, values: Any, weights: Any, scales: Any, wanted: Any
) -> dict[str, float]:
    import torch
    from gpu_timing import graph_us

    (tokens, columns), rows = values.shape, len(weights)
    constants = dict(form.constants)
    programs = -(-tokens // int(constants["BM"])) * -(-rows // int(constants["BN"]))
    if form.kernel is MATMUL_8BIT_STREAM:
        programs = min(programs, launcher.device.multiprocessors)
    dtype = torch.float32 if dict(form.types)["outputs"] == "*fp32" else torch.bfloat16
    result = torch.zeros(splits, tokens, rows, dtype=dtype, device="cuda")

    def call() -> None:
        launcher.launch(
            form, (programs, splits, 1), values.data_ptr(), scales.data_ptr(), weights.data_ptr(),
            scales.data_ptr(), result.data_ptr(), tokens, rows // 16, columns // 128, rows // 16,
        )  # fmt: skip

    us = graph_us([call], least=8, replays=5)
    error = (result.float().sum(0) - wanted).abs().max() / wanted.abs().max()
    return {"us": us, "TOP/s": 2 * tokens * rows * columns / us / 1e6, "error": float(error)}


def elementwise(launcher: Any, report: Report) -> None:
    for rows in (128, 2048, 8192):
        gates(launcher, report, rows)
        norms(launcher, report, rows)


def timed(call: Callable[[], None], moved_bytes: int) -> dict[str, float]:
    from gpu_timing import graph_us

    us = graph_us([call], least=8, replays=5)
    return {"us": us, "TB/s": moved_bytes / us / 1e6}


def turned_room(rows: int, columns: int) -> tuple[Turned, Any, Any]:
    import torch

    codes = torch.zeros(rows, columns, dtype=torch.int8, device="cuda")
    scales = torch.zeros(rows, device="cuda")
    room = Turned(rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr())
    return room, codes, scales


def gates(launcher: Any, report: Report, rows: int) -> None:
    import torch

    from zse.kernels.gate_up.launch import activate
    from zse.kernels.linear.launch_8bit import turn_activations
    from zse.kernels.turned.launch import turned_silu

    joined = torch.randn(rows, 2 * WIDTH, device="cuda").bfloat16()
    plain = torch.zeros(rows, WIDTH, dtype=torch.bfloat16, device="cuda")
    inputs = Plain(rows=rows, columns=2 * WIDTH, values=joined.data_ptr())
    middle = Plain(rows=rows, columns=WIDTH, values=plain.data_ptr())
    room, codes, _scales = turned_room(rows, WIDTH)
    moved = joined.numel() * 2 + codes.numel()

    def apart() -> None:
        activate(launcher, inputs, middle)
        turn_activations(launcher, middle, room)

    def together(form: Variant) -> dict[str, float]:
        apart()
        held = codes.int()
        found = timed(lambda: turned_silu(launcher, inputs, room, tuned=form), moved)
        return {**found, "steps off": float((codes.int() - held).abs().max())}

    report.part(f"silu rows {rows} apart", lambda: timed(apart, moved))
    for warps in (8, 16, 32):
        form = turned_silu_variant(256, num_warps=warps)
        report.part(f"silu rows {rows} turned warps {warps}", partial(together, form))


def norms(launcher: Any, report: Report, rows: int) -> None:
    import torch

    from zse.kernels.turned.launch import turned_norm

    stream = torch.randn(rows, HIDDEN, device="cuda")
    added = torch.randn(rows, HIDDEN, device="cuda") * 1e-3
    weight = torch.ones(HIDDEN, device="cuda")
    room, _codes, _scales = turned_room(rows, HIDDEN)
    pending = Partials(rows=rows, columns=HIDDEN, splits=1, values=added.data_ptr())

    def call(form: Variant) -> None:
        turned_norm(
            launcher, stream.data_ptr(), weight.data_ptr(), 1e-6, room, added=pending, tuned=form
        )

    for warps in (4, 8, 16):
        form = turned_norm_variant(32, num_warps=warps)
        work = partial(timed, partial(call, form), rows * HIDDEN * 13)
        report.part(f"norm rows {rows} turned warps {warps}", work)


def contexts(launcher: Any, report: Report) -> None:
    import torch
    from attention_cases import PrefillCase, relative_error
    from gpu_timing import graph_us

    from zse.kernels.attention.context import (
        Context,
        attention_over_context,
        context_bytes,
        context_entries,
        gather_context,
    )
    from zse.kernels.attention.launch import PrefillTiles

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    for first, count in ((0, 2048), (0, 8192), (27952, 2048)):
        for queries, tokens, warps, stages in CONTEXTS:
            case = PrefillCase(launcher, QWEN_7B, [(first, count)], queries=queries)
            entries = ints(context_entries(case.cache.table[0].tolist(), first + count))
            lines = ints([0] * len(case.arrays[0]))
            buffer = torch.zeros(
                context_bytes(QWEN_7B, len(entries)), dtype=torch.uint8, device="cuda"
            )
            context = Context(
                keys=buffer.data_ptr(), num_blocks=len(entries), blocks=entries.data_ptr(),
                tile_lines=lines.data_ptr(),
            )  # fmt: skip
            tiles = PrefillTiles(
                count=len(lines), first_rows=case.arrays[0].data_ptr(),
                num_rows=case.arrays[1].data_ptr(), table_rows=0,
                first_positions=case.arrays[3].data_ptr(),
            )  # fmt: skip
            form = attention.context_variant(
                128, tokens, queries=queries, num_warps=warps, num_stages=stages
            )

            def gather(case=case, context=context) -> None:
                gather_context(launcher, QWEN_7B, case.cache.layer(0), context)

            def attend(case=case, context=context, tiles=tiles, form=form) -> None:
                attention_over_context(
                    launcher, case.queries.data_ptr(), QWEN_7B, context, tiles,
                    case.found.data_ptr(), tuned=form,
                )  # fmt: skip

            def run(case=case, gather=gather, attend=attend, queries=queries) -> dict[str, float]:
                gather()
                attend()
                torch.cuda.synchronize()
                error = 0.0
                if queries == 64:
                    found = case.found.clone()
                    case.call()
                    error = relative_error(found, case.found)
                us = graph_us([attend], least=4, replays=5)
                return {"us": us, "TFLOP/s": case.flops / us / 1e6, "error": error}

            shape = f"{queries} x {tokens}, {warps} warps, {stages} stages"
            report.part(f"context {count} after {first}: {shape}", run)
        case = PrefillCase(launcher, QWEN_7B, [(first, count)])
        report.part(
            f"context {count} after {first}: pages",
            lambda case=case: {"us": case.microseconds()},
        )
        report.part(
            f"context {count} after {first}: copying",
            lambda gather=gather: {"us": graph_us([gather], least=8, replays=5)},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="regular expression of the parts to run")
    options = parser.parse_args()
    import torch
    from gpu_timing import pack_launcher

    from zse.kernels.build.builder import build_pack
    from zse.kernels.targets import target_named

    capability = torch.cuda.get_device_capability()
    target = target_named(f"sm_{capability[0]}{capability[1]}")
    with tempfile.TemporaryDirectory() as folder:
        built = build_pack(
            target, everything(), source_digest="bench", cache_dir=Path(folder), keep_going=True
        )
        path = Path(folder) / "forms.zkp"
        path.write_bytes(built.data)
        print(f"{len(built.kernels)} forms, {built.seconds:.0f} s, failed: {list(built.failed)}")
        launcher, report = pack_launcher(path), Report(options.seconds, options.only)
        contexts(launcher, report)
        elementwise(launcher, report)
        products(launcher, report)
    print(json.dumps({"benchmark": "prompt kernels", **machine_facts(), **report.figures}))


if __name__ == "__main__":
    main()
