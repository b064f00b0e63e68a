"""How fast tokens come: batches of random prompts, greedy, every answer of the same length.

    python scripts/bench/decode.py MODEL.zse --batch 1,8,32,128 --input 128 --output 256

Decode tokens/s count while every request of the batch decodes: from the moment the last one has
its first token until the first one has its last. The output rate includes prefill. With ``--http``
the same goes through a started server, one connection a request.

Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from engine_runs import (
    add_device_arguments,
    middle,
    milliseconds,
    open_core,
    quantile,
    whole_numbers,
)
from http_runs import HttpServer
from machine import machine_facts

from zse.engine.meter import random_prompts, run_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.meter import TimedRun

WARM_TOKENS = 8
TOGETHER_TOKENS = 40
"""Of answers to brief prompts: enough for all of a batch to decode at once. Behind long prompts the
first ones of a large batch have ended when the last ones begin."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is measured: the engine in this process, or a server."""

    name: str
    vocab_size: int
    answer: Callable[[list[list[int]], int], TimedRun]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--batch", type=whole_numbers, default=[1, 8, 32, 128])
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the median counts")
    parser.add_argument("--max-batch-tokens", type=int, default=2048, help="budget of a step")
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="of every request; not with --http"
    )
    parser.add_argument("--http", action="store_true", help="through python -m zse.serve")
    add_device_arguments(parser)
    options = parser.parse_args()
    facts: dict[str, Any] = {"subject": "decode", "model": options.model, "http": options.http}
    if options.http:
        with HttpServer(options, num_tokens=options.input + options.output) as server:
            results = measure_all(
                options, Target(name="http", vocab_size=server.vocab_size, answer=server.answer)
            )
    else:
        core = open_core(
            options,
            num_tokens=options.input + options.output,
            max_sequences=max(options.batch),
            max_batch_tokens=max(options.max_batch_tokens, *options.batch),
        )
        try:
            facts["memory_bytes"] = core.runner.memory_bytes()  # type: ignore[attr-defined]
            target = Target(
                name="engine",
                vocab_size=core.runner.vocab_size,
                answer=partial(run_batch, core, repetition_penalty=options.repetition_penalty),
            )
            results = measure_all(options, target)
        finally:
            core.close()
    asked = ("input", "output", "repetition_penalty")
    facts |= {name: getattr(options, name) for name in asked} | machine_facts()
    print(json.dumps({**facts, "results": results}))


def measure_all(options: argparse.Namespace, target: Target) -> list[dict[str, float]]:
    heading = (
        "batch",
        "decode tok/s",
        "step p50 ms",
        "p99 ms",
        "output tok/s",
        "ttft p50",
        "max ms",
    )
    print(" ".join(f"{word:>13}" for word in heading))
    return [measure(options, target, batch) for batch in options.batch]


def measure(options: argparse.Namespace, target: Target, batch: int) -> dict[str, float]:
    """Measure one batch size and print its row."""

    def prompts(number: int) -> list[list[int]]:
        seed = hash((options.seed, batch, number))
        return random_prompts(target.vocab_size, batch, options.input, seed)

    target.answer(prompts(0), min(WARM_TOKENS, options.output))
    brief = [prompt[:WARM_TOKENS] for prompt in prompts(0)]
    target.answer(brief, min(TOGETHER_TOKENS, options.output))  # graphs of this size are made here
    runs = [target.answer(prompts(n + 1), options.output) for n in range(options.repeat)]
    run = middle(runs)
    row = {
        "batch": batch,
        "decode_tokens_per_second": round(run.decode_rate, 1),
        "step_ms_p50": milliseconds(quantile(run.step_seconds, 0.5)),
        "step_ms_p99": milliseconds(quantile(run.step_seconds, 0.99)),
        "output_tokens_per_second": round(run.output_rate, 1),
        "first_token_ms_p50": milliseconds(quantile(run.first_token_seconds, 0.5)),
        "first_token_ms_max": milliseconds(run.first_token_seconds[-1]),
    }
    print(" ".join(f"{value:>13}" for value in row.values()), flush=True)
    return {**row, "decode_tokens_per_second_runs": [round(r.decode_rate, 1) for r in runs]}  # type: ignore[dict-item]


if __name__ == "__main__":
    main()
