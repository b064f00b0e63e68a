"""Sampling on the GPU at hand: right against torch, then microseconds a call in a CUDA graph.

    python scripts/bench/sampling.py                  # table, ends with one JSON line
    python scripts/bench/sampling.py --sweep          # the same for other ways to cut up rows
    python scripts/bench/sampling.py --build-pack build/sampling.zkp [--sweep]   # no GPU needed
    python scripts/bench/sampling.py --pack build/sampling.zkp

Needs torch with CUDA, and triton unless ``--pack`` names a pack that holds what is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import torch
from gpu_timing import graph_us, pack_launcher
from machine import machine_facts
from sampling_calls import SamplingCall

from zse.errors import ZSEError
from zse.kernels.build.builder import build_pack
from zse.kernels.lm_head_sample.reference import kept_probabilities
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kernels.lm_head_sample.variants import TILES, Tiles, variants_of
from zse.kernels.targets import target_named

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
FAILURES = (ZSEError, RuntimeError, ValueError, TypeError, AssertionError)
CACHE = ROOT / "build" / "triton"
VOCAB = 152064
ROWS = (1, 8, 32, 128)
SWEEP = {
    "block 2048": replace(TILES, block=2048, max_blocks=256),
    "block 8192": replace(TILES, block=8192, max_blocks=64, block_warps=8),
    "8 warps a block": replace(TILES, block_warps=8),
    "slice 128": replace(TILES, slice=128),
    "slice 512": replace(TILES, slice=512),
    "slice 512, 8 warps": replace(TILES, slice=512, block_warps=8),
    "chunk 1024": replace(TILES, chunk=1024),
    "chunk 1024, 4 warps a row": replace(TILES, chunk=1024, row_warps=4),
    "chunk 4096, 16 warps a row": replace(TILES, chunk=4096, row_warps=16),
}
CASES = {
    "greedy": SamplingRow(temperature=0.0),
    "random": SamplingRow(temperature=0.8),
    "min_p": SamplingRow(temperature=1.2, min_p=0.05),
    "top_k 50": SamplingRow(temperature=0.8, top_k=50),
    "top_p 0.9": SamplingRow(temperature=0.8, top_p=0.9),
    "top_k, top_p": SamplingRow(temperature=0.7, top_k=20, top_p=0.8),
    "flat, top_p 0.9": SamplingRow(temperature=2.0, top_p=0.9),
    "greedy, logprobs": SamplingRow(temperature=0.0, logprobs=20),
    "greedy, 500 penalties": SamplingRow(
        temperature=0.0, repetition_penalty=1.1, prompt_token_ids=range(500)
    ),
}


def open_launcher(path: Path | None, tiles: list[Tiles]):
    """Return a launcher of a pack, or of one built on the spot for this GPU."""
    if path is None:
        major, minor = torch.cuda.get_device_capability()
        path = ROOT / "build" / "sampling.zkp"
        build(path, f"sm_{major}{minor}", tiles)
    return pack_launcher(path)


def build(path: Path, target: str, tiles: list[Tiles]) -> None:
    forms = {form.key: form for one in tiles for form in variants_of(one)}
    built = build_pack(
        target_named(target),
        list(forms.values()),
        source_digest="bench",
        cache_dir=CACHE,
        keep_going=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(built.data)
    print(f"{len(built.kernels)} kernels in {built.seconds:.0f} s; failed: {built.failed}")
    for kernel in built.kernels:
        if kernel.facts["stack_bytes"] > 64:
            print(f"spills {kernel.facts['stack_bytes']} bytes: {kernel.key}")


def make_logits(rows: int, vocab: int, *, flat: bool = False) -> torch.Tensor:
    """Return logits on the GPU: a bulk, and unless flat a few hundred tokens that stand out."""
    generator = torch.Generator(device="cuda").manual_seed(rows * vocab)
    logits = torch.randn(rows, vocab, device="cuda", generator=generator) * (1.0 if flat else 2.2)
    if not flat:
        places = torch.randint(vocab, (rows, 300), device="cuda", generator=generator)
        raised = 12.0 + 2.0 * torch.randn(rows, 300, device="cuda", generator=generator)
        logits.scatter_(1, places, raised)
    return logits


def logits_of(name: str, rows: int, vocab: int) -> torch.Tensor:
    return make_logits(rows, vocab, flat=name.startswith("flat"))


def check_case(launcher, name: str, row: SamplingRow, tiles: Tiles, vocab: int) -> str:
    """Return what is wrong with two rows of one case, or nothing."""
    logits = logits_of(name, 2, vocab)
    call = SamplingCall(logits, [replace(row, seed=seed) for seed in range(2)])
    found = call.run(launcher, tiles=tiles)
    plain = logits.cpu()
    for i, token in enumerate(found.tokens):
        if row.logprobs is not None:
            logprobs = torch.log_softmax(plain[i].double(), 0)
            top = logprobs.topk(20)
            errors = (found.top_logprobs[i] - top.values).abs().max()
            if errors > 1e-4 or found.top_tokens[i].tolist() != top.indices.tolist():
                return f"alternatives differ by {errors:.1e}"
            if abs(float(found.logprobs[i] - logprobs[token])) > 1e-4:
                return "log-probability differs"
        if row.temperature == 0.0:
            if token != int(found.logits[i].argmax()):
                return f"greedy took {token}"
            continue
        expected = kept_probabilities(
            plain[i],
            temperature=row.temperature,
            top_k=row.top_k,
            top_p=row.top_p,
            min_p=row.min_p,
        )
        if expected[token] <= 0.0 and call.default_kind.truncated:
            return f"row {i} drew {token}, which is cut"
        if call.default_kind.truncated:
            wrong = found.kept[i] ^ set(torch.nonzero(expected).flatten().tolist())
            mass = float(torch.softmax(plain[i].double() / row.temperature, 0)[list(wrong)].sum())
            if mass > 1e-5 or (row.top_k and wrong):
                return f"{len(wrong)} tokens differ, {mass:.1e} of the mass"
    return ""


def check_distribution(launcher, name: str, row: SamplingRow, tiles: Tiles, vocab: int) -> str:
    """Return what is wrong with 256 draws whose random numbers are spread evenly."""
    count = 256
    logits = logits_of(name, 1, vocab)
    uniforms = [(i + 0.5) / count for i in range(count)]
    call = SamplingCall(logits.repeat(count, 1), [row] * count, uniforms=uniforms)
    call.prepare(tiles)
    call.launch(launcher)
    tokens = torch.tensor(call.tokens())
    expected = kept_probabilities(
        logits[0].cpu(),
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
    )
    seen = torch.bincount(tokens, minlength=vocab) / count
    error = float((seen - expected).abs().max())
    return f"off by {error * count:.2f} draws" if error > 1.05 / count else ""


def check(launcher, tiles: Tiles) -> list[str]:
    """Return what is wrong, at the model's vocabulary and at odd ones."""
    failures = []
    for vocab in (VOCAB, 50257, 262208):
        for name, row in CASES.items():
            parts = [check_case]
            if row.temperature > 0.0 and vocab == VOCAB:
                parts.append(check_distribution)
            for part in parts:
                try:
                    wrong = part(launcher, name, row, tiles, vocab)
                except FAILURES as error:
                    traceback.print_exc()
                    wrong = f"{type(error).__name__}: {error}"[:300]
                if wrong:
                    failures.append(f"{name}, vocab {vocab}, {part.__name__}: {wrong}")
                    print("WRONG", failures[-1], flush=True)
    return failures


class Recorder:
    """A launcher that remembers, to time one kernel of a call by itself."""

    def __init__(self, launcher) -> None:
        self.device = launcher.device
        self._launcher = launcher
        self.launches: list[tuple[Any, ...]] = []

    def launch(self, *launch: Any) -> None:
        self.launches.append(launch)
        self._launcher.launch(*launch)


def call_us(call: Callable[[], None], repeats: int = 20) -> float:
    """Return the median microseconds of one call, from a graph of several."""
    return graph_us([call], least=repeats, replays=15)


def time_case(launcher, name: str, row: SamplingRow, rows: int, tiles: Tiles) -> dict[str, float]:
    """Return microseconds of the call, and of each of its kernels run over and over."""
    call = SamplingCall(logits_of(name, rows, VOCAB), [replace(row, seed=i) for i in range(rows)])
    call.prepare(tiles)
    recorder = Recorder(launcher)
    call.launch(recorder)
    torch.cuda.synchronize()
    times = {"total": call_us(lambda: call.launch(launcher))}
    for launch in recorder.launches:
        kernel = launch[0].kernel.function
        times[kernel] = call_us(lambda launch=launch: launcher.launch(*launch))
    return {kernel: round(us, 2) for kernel, us in times.items()}


def torch_us(rows: int) -> dict[str, float]:
    """Return microseconds of what torch needs for greedy and for top_k with top_p."""
    logits = make_logits(rows, VOCAB)

    def truncated() -> None:
        values, tokens = logits.sort(dim=1, descending=True)
        probabilities = torch.softmax(values / 0.7, 1)
        probabilities[probabilities.cumsum(1) > 0.8] = 0.0
        tokens.gather(1, torch.multinomial(probabilities, 1))

    return {
        "greedy": round(call_us(lambda: logits.argmax(1)), 2),
        "top_k, top_p": round(call_us(truncated, repeats=3), 2),
    }


def bench(launcher, tiles: Tiles, names: list[str]) -> list[dict[str, Any]]:
    results = []
    for rows in ROWS:
        for name in names:
            try:
                times = time_case(launcher, name, CASES[name], rows, tiles)
            except FAILURES as error:
                traceback.print_exc()
                results.append({"case": name, "rows": rows, "failed": str(error)[:300]})
                continue
            results.append({"case": name, "rows": rows, "microseconds": times})
            parts = "  ".join(f"{k} {us:.1f}" for k, us in times.items() if k != "total")
            print(f"rows {rows:3d}  {name:22s} {times['total']:8.2f} us   {parts}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--build-pack", type=Path)
    parser.add_argument("--gpu", default="sm_90", help="for --build-pack")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    forms = {"as shipped": TILES, **(SWEEP if options.sweep else {})}
    if options.build_pack:
        build(options.build_pack, options.gpu, list(forms.values()))
        return 0
    launcher = open_launcher(options.pack, list(forms.values()))
    report: dict[str, Any] = {"benchmark": "sampling", "vocab": VOCAB, **machine_facts()}
    failures: dict[str, list[str]] = {}
    report["results"] = []
    for label, tiles in forms.items():
        print(f"== {label}", flush=True)
        failures[label] = check(launcher, tiles) if label == "as shipped" else []
        names = list(CASES) if label == "as shipped" else ["random", "top_k 50", "top_p 0.9"]
        results = bench(launcher, tiles, names)
        report["results"].append({"tiles": asdict(tiles), "label": label, "cases": results})
    report["torch"] = {}
    for rows in ROWS:
        try:
            report["torch"][rows] = torch_us(rows)
            print(f"rows {rows:3d}  torch: {report['torch'][rows]}", flush=True)
        except FAILURES as error:
            traceback.print_exc()
            report["torch"][rows] = {"failed": str(error)[:300]}
    report["failures"] = failures
    print(json.dumps(report))
    return 1 if any(failures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
