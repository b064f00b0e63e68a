"""A model that streams through less memory than it takes, held against the bound of the link.

For each window (layers that stay; 0 is as many as fit) the model is opened once, and batches of
requests are decoded, also with drafts. The bound is what passes for a step over what the link was
measured to move on this host, times the tokens that a step yields; a step yields more than its rows
where drafts are accepted. Random weights repeat themselves, so drafts gain more than on real texts.

    python scripts/bench/streaming.py MODEL.zse --vram-gib 24 --batch 1,8,32 --resident 0,4

Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from engine_runs import whole_numbers
from machine import machine_facts

from zse.engine import meter
from zse.engine.loading import make_core
from zse.option import with_values
from zse.options import load_options
from zse.settings import load_settings

COLUMNS = ("window", "drafts", "host", "batch", "tok/s", "steps/s", "bound", "of bound", "waited")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vram-gib", type=float, default=24.0)
    parser.add_argument("--ram-gib", type=float, default=0.0, help="for pinned copies")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--resident", type=whole_numbers, default=[0], help="layers that stay")
    parser.add_argument("--batch", type=whole_numbers, default=[1, 8, 32])
    parser.add_argument("--speculate", default="off,suffix", help="off, suffix or both")
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=24)
    parser.add_argument("--no-pin", action="store_true", help="through the page cache alone")
    options = parser.parse_args()
    print(" ".join(f"{name:>9}" for name in COLUMNS), flush=True)
    results = [row for resident in options.resident for row in measure(options, resident)]
    print(json.dumps({"subject": "streaming", **machine_facts(), "results": results}))


def measure(options: argparse.Namespace, resident: int) -> list[dict[str, Any]]:
    """Open the model with one window, and measure all batches."""
    load = load_options(
        device=options.device,
        vram_gib=options.vram_gib,
        ram_gib=1e-6 if options.no_pin else options.ram_gib,
        stream="on",
        stream_slots=options.slots,
        resident_layers=resident,
        max_sequences=max(options.batch),
        kernels=load_settings().serve.load.device.kernels,
    )
    began = time.perf_counter()
    num_tokens = options.input + options.output
    runner = meter.open_runner(options.model, load, load_settings(), num_tokens=num_tokens)
    opened = time.perf_counter() - began
    rows = []
    try:
        for host in ("file", "pinned")[: 1 if options.no_pin else 2]:
            pinning = 0.0
            if host == "pinned":
                began = time.perf_counter()
                wait_pinned(runner)
                pinning = time.perf_counter() - began
            for speculate in options.speculate.split(","):
                batches = options.batch if host == "pinned" or options.no_pin else [1]
                if host == "file" and not options.no_pin and speculate != "off":
                    continue
                core = make_core(
                    runner, with_values(load, {"prefix_cache": False, "speculate": speculate})
                )
                for batch in batches:
                    row = run(core, runner, options, batch)
                    named = {"host": host, "drafts": speculate, "open_seconds": round(opened, 2)}
                    rows.append({**row, **named, "pinning_seconds": round(pinning, 2)})
                    say(rows[-1])
    finally:
        runner.close()
    return rows


def run(core: Any, runner: Any, options: argparse.Namespace, batch: int) -> dict[str, Any]:
    prompts = meter.random_prompts(runner.vocab_size, batch, options.input, 7 * batch)
    meter.run_batch(core, prompts, 4)  # graphs of this size are made here
    before = runner.streaming
    began = time.perf_counter()
    timed = meter.run_batch(core, prompts, options.output)
    seconds = time.perf_counter() - began
    after = runner.streaming
    steps = len(timed.step_seconds)
    per_step = timed.decode_tokens / steps if steps else 0.0
    steps_per_second = steps / timed.decode_seconds if timed.decode_seconds else 0.0
    bound = after.most_steps_per_second
    return {
        "resident_layers": after.resident_layers,
        "streamed_layers": after.streamed_layers,
        "streamed_gigabytes": round(after.streamed_bytes / 1e9, 3),
        "pinned_gigabytes": round(after.pinned_bytes / 1e9, 3),
        "link_gigabytes_per_second": round(after.link_bytes_per_second / 1e9, 2),
        "batch": batch,
        "decode_tokens_per_second": round(timed.decode_rate, 2),
        "steps_per_second": round(steps_per_second, 3),
        "tokens_per_step": round(per_step, 2),
        "bound_tokens_per_second": round(bound * per_step, 2),
        "of_bound": round(steps_per_second / bound, 3),
        "passed_gigabytes_per_second": round(
            (after.passed_bytes - before.passed_bytes) / 1e9 / seconds, 2
        ),
        "waited_share": round((after.waited_seconds - before.waited_seconds) / seconds, 3),
        "first_token_ms": round(1000 * timed.first_token_seconds[0], 1),
    }


def wait_pinned(runner: Any) -> None:
    """Wait until the copies that memory allows are made: what a server has after a while."""
    runner._backend._passes._weights.wait_pinned()


def say(row: dict[str, Any]) -> None:
    cells = (
        f"{row['resident_layers']}+{row['streamed_layers']}",
        row["drafts"],
        row["host"],
        row["batch"],
        row["decode_tokens_per_second"],
        row["steps_per_second"],
        row["bound_tokens_per_second"],
        row["of_bound"],
        row["waited_share"],
    )
    print(" ".join(f"{cell!s:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
