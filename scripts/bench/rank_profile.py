"""Where the time of steps goes on several GPUs of one host: each kernel, the graph, the host.

    scripts/bench/rank_profile.py MODEL.zse --ranks 1,2 [--prompt 8192] [--batch 64]

Each rank is a process that makes the same steps. Of a prompt every launch stands between two
events, so kernels do not overlap and sums wait for the other ranks; of a step of many rows the
graph is launched alone. Prints what rank 0 saw, the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

import rank_mesh
from machine import machine_facts
from model_ranks import open_runner, prompt

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.settings import load_settings

CONTEXT, REPEATS, SHOWN = 640, 5, 14


class TimedLauncher:
    """Puts an event in front of every launch and one behind it."""

    def __init__(self, backend: Any) -> None:
        self._launcher, self._gpu, self._stream = backend._launcher, backend._gpu, backend._stream
        self.device = self._launcher.device
        self._events: list[tuple[str, Any, Any]] = []

    def prepare(self, *variants: Any) -> None:
        self._launcher.prepare(*variants)

    def launch(self, variant: Any, grid: Any, *arguments: Any) -> None:
        first, last = (self._gpu.create_event(timing=True) for _ in range(2))
        first.record(self._stream)
        self._launcher.launch(variant, grid, *arguments)
        last.record(self._stream)
        self._events.append((variant.kernel.name, first, last))

    def milliseconds(self) -> dict[str, tuple[int, float]]:
        """Return launches and time of each kernel, the longest first."""
        self._stream.synchronize()
        found: dict[str, list[float]] = defaultdict(list)
        for name, first, last in self._events:
            found[name].append(last.elapsed_ms(first))
        ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
        return {name: (len(times), round(sum(times), 3)) for name, times in ordered}


def chunk(slot: int, tokens: list[int], start: int, blocks: int) -> SequenceChunk:
    table = range(slot * blocks, (slot + 1) * blocks)
    return SequenceChunk(slot, tokens, start, table, kind_of(len(tokens)))


def batch_of(chunks: list[SequenceChunk]) -> StepBatch:
    return StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)] for _ in chunks])


def timed(runner: Any, batch: StepBatch, link: Any) -> tuple[float, float]:
    """Return the least milliseconds of a step, and of sending it on its way."""
    whole, sent = [], []
    for _ in range(REPEATS):
        link.barrier()
        began = time.perf_counter()
        pending = runner.submit(batch)
        sent.append(time.perf_counter() - began)
        pending.wait()
        whole.append(time.perf_counter() - began)
    return round(min(whole) * 1e3, 3), round(min(sent) * 1e3, 3)


def graph_ms(backend: Any, link: Any) -> float:
    """Return the least milliseconds of the graph that was captured last."""
    graph = list(backend._graphs.values())[-1].graph
    found = []
    for _ in range(3 * REPEATS):
        backend._stream.synchronize()
        link.barrier()
        began = time.perf_counter()
        graph.launch(backend._stream)
        backend._stream.synchronize()
        found.append(time.perf_counter() - began)
    return round(min(found) * 1e3, 3)


def of_rank(arguments: argparse.Namespace) -> None:
    link, rows, tokens = rank_mesh.Mesh.of_environment(), arguments.batch, arguments.prompt
    per_prompt, per_row = tokens // 32 + 1, CONTEXT // 32
    runner = open_runner(
        arguments.model, load_settings().serve.load.device.kernels,
        link if link.share.ranks > 1 else None, prefill_precision="auto", max_sequences=rows,
        max_context=max(tokens + 64, 1024), max_batch_tokens=tokens,
        num_blocks=max(per_prompt, per_row * rows) + 1,
    )  # fmt: skip
    backend = runner._backend
    found: dict[str, Any] = {"ranks": link.share.ranks}
    long = batch_of([chunk(0, prompt(tokens), 0, per_prompt)])
    runner.execute(long)
    found["prompt_ms"], found["prompt_sent_ms"] = timed(runner, long, link)
    launcher = TimedLauncher(backend)
    usual, backend._launcher = backend._launcher, launcher
    link.barrier()
    runner.execute(long)
    found["prompt_kernels"] = launcher.milliseconds()
    backend._launcher = usual
    for count in (1, rows):
        many = batch_of([chunk(slot, [7], CONTEXT - 64, per_row) for slot in range(count)])
        runner.execute(many)
        step, sent = timed(runner, many, link)
        found[f"step_{count}_ms"], found[f"step_{count}_sent_ms"] = step, sent
        found[f"step_{count}_graph_ms"] = graph_ms(backend, link)
    link.barrier()
    runner.close()
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()
    if rank_mesh.VARIABLE in os.environ:
        of_rank(arguments)
        return
    every = []
    for ranks in map(int, arguments.ranks.split(",")):
        outputs = rank_mesh.run([__file__, *sys.argv[1:]], ranks)
        found = json.loads(outputs[0].splitlines()[-1])
        every.append(found)
        kernels = found["prompt_kernels"]
        print(f"\n{ranks} ranks:", {k: v for k, v in found.items() if k != "prompt_kernels"})
        for name, (count, milliseconds) in list(kernels.items())[:SHOWN]:
            print(f"  {name:36}{count:6}{milliseconds:10.2f} ms")
    print(json.dumps({"bench": "rank_profile", "rows": every, **machine_facts()}))


if __name__ == "__main__":
    main()
