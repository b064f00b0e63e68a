"""Where the time of a step goes: each kernel of a step replayed alone, in graphs.

Records the launches of one step, then captures those of each kind (a layer's norm, its matrices,
attention ...) into a graph of their own and times it, beside the whole step.

    python scripts/bench/step_profile.py MODEL.zse [--rows 1] [--context 384]
    python scripts/bench/step_profile.py MODEL.zse --prompt 8192 [--context 0]

With ``--prompt`` the step is a piece of one prompt, behind ``--context`` tokens, and launched
eagerly: the whole is timed between two events, the host's launches included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from typing import TYPE_CHECKING, Any

from machine import machine_facts

from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.step_maker import GREEDY
from zse.backends.types import (
    SequenceChunk,
    StepBatch,
)
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

REPLAYS = 20


class Recorder:
    """A launcher that remembers what it launched."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher
        self.device = launcher.device
        self.launches: list[tuple[Any, ...]] = []

    def launch(self, variant: Any, grid: Any, *arguments: Any) -> None:
        self.launches.append((variant, grid, arguments))
        self._launcher.launch(variant, grid, *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=0, help="tokens of a piece of a prompt")
    parser.add_argument("--context", type=int, default=384)
    parser.add_argument("--prefill-precision", default="auto")
    parser.add_argument("--prefill-weights", default="auto")
    parser.add_argument("--kernels", default=load_settings().serve.load.device.kernels)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--exact-activations", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    blocks = (options.context + options.prompt) // 32 + 2
    runner = load_runner(
        options.model,
        load_options(
            device="cuda",
            max_context=max(4096, options.context + options.prompt + 64),
            num_blocks=blocks * options.rows,
            max_sequences=max(options.rows, 2),
            max_batch_tokens=max(options.prompt, 2048),
            prefill_precision=options.prefill_precision,
            prefill_weights=options.prefill_weights,
            kernels=options.kernels,
            kv_dtype=options.kv_dtype,
            exact_activations=options.exact_activations,
            deterministic=options.deterministic,
        ),
        cache_dir=load_settings().cache_dir,
    )
    if options.prompt:
        rows = profile_prompt(runner, options.prompt, options.context, blocks)
    else:
        rows = profile(runner, options.rows, options.context, blocks)
    print_table(rows)
    facts = {"subject": "step_profile", **machine_facts(), "model": options.model}
    asked = {"rows": options.rows, "prompt": options.prompt, "context": options.context}
    print(json.dumps({**facts, **asked, "kernels": rows}))


def profile(runner: Any, rows: int, context: int, blocks: int) -> list[dict[str, Any]]:
    backend = runner._backend
    chunks = [
        SequenceChunk(
            sequence_slot=slot,
            token_ids=[7 + slot],  # of its own, so that rows choose experts of their own
            start_position=context - 1,
            block_table=range(slot * blocks, (slot + 1) * blocks),
            kind="decode",
        )
        for slot in range(rows)
    ]
    batch = StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)]] * rows)
    for _ in range(3):
        runner.execute(batch)
    bucket = 1 << (rows - 1).bit_length()
    key = GREEDY._replace(rows=bucket)
    captured = backend._graphs[key]
    shape = InputShape(
        decode_rows=bucket,
        sequences=bucket,
        table_stride=backend._maker.limits.table_stride,
        wanted=bucket,
    )
    memory = backend._memory.sequences
    step = backend._maker._step(shape, captured.inputs.address, memory, key.sampling)
    recorder = Recorder(step.launcher)
    runner._forward(backend, dataclasses.replace(step, launcher=recorder))
    whole = time_graph(backend, captured.graph)
    return by_kind(backend, recorder, whole)


def profile_prompt(runner: Any, tokens: int, context: int, blocks: int) -> list[dict[str, Any]]:
    backend = runner._backend
    chunk = SequenceChunk(
        sequence_slot=0,
        token_ids=[7 + index % 1000 for index in range(tokens)],
        start_position=context,
        block_table=range(blocks),
        kind="prefill",
    )
    batch = StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]])
    for _ in range(3):
        runner.execute(batch)
    step = backend.begin(batch)
    recorder = Recorder(step.launcher)
    runner._forward(backend, dataclasses.replace(step, launcher=recorder))
    whole = timed(backend, lambda: runner._forward(backend, step))
    return by_kind(backend, recorder, whole)


def by_kind(backend: Any, recorder: Recorder, whole: float) -> list[dict[str, Any]]:
    """Return what a step takes, and its launches of each kind alone, in microseconds."""
    kinds: dict[tuple[str, Any], list[Any]] = {}
    for launch in recorder.launches:
        kinds.setdefault((launch[0].key, launch[1]), []).append(launch)
    table: list[dict[str, Any]] = [
        {"kernel": "whole step", "launches": len(recorder.launches), "step_us": whole}
    ]
    for (key, grid), launches in kinds.items():
        with backend._gpu.capture(backend._stream) as capture:
            for variant, launch_grid, arguments in launches:
                recorder._launcher.launch(variant, launch_grid, *arguments)
        graph = capture.graph.instantiate()
        micros = time_graph(backend, graph)
        table.append(
            {"kernel": key, "grid": list(grid), "launches": len(launches), "step_us": micros}
        )
    return table


def time_graph(backend: Any, graph: Any) -> float:
    """Return the median microseconds of a replay."""
    return timed(backend, lambda: graph.launch(backend._stream))


def timed(backend: Any, work: Callable[[], object]) -> float:
    """Return the median microseconds of what some work puts into the stream."""
    start, end = (backend._gpu.create_event(timing=True) for _ in range(2))
    times = []
    for _ in range(REPLAYS):
        start.record(backend._stream)
        work()
        end.record(backend._stream)
        end.synchronize()
        times.append(end.elapsed_ms(start) * 1e3)
    return round(statistics.median(times), 2)


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'us a step':>10} {'launches':>8} {'us each':>8}  kernel")
    for row in sorted(rows, key=lambda row: -row["step_us"]):
        each = row["step_us"] / row["launches"]
        print(
            f"{row['step_us']:>10.1f} {row['launches']:>8} {each:>8.2f}  {row['kernel']} "
            f"{row.get('grid', '')}"
        )


if __name__ == "__main__":
    main()
