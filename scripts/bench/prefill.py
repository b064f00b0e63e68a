"""How fast prompts are read: one random prompt at a time, one token back, prefix cache off.

    python scripts/bench/prefill.py MODEL.zse --tokens 2048,8192

Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json

from engine_runs import (
    add_device_arguments,
    median_of,
    milliseconds,
    open_core,
    whole_numbers,
)
from machine import machine_facts

from zse.engine.meter import random_prompts, run_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--tokens", type=whole_numbers, default=[2048, 8192])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--max-batch-tokens", type=int, default=2048, help="budget of a step")
    add_device_arguments(parser)
    options = parser.parse_args()
    core = open_core(
        options,
        num_tokens=max(options.tokens) + 1,
        max_sequences=1,
        max_batch_tokens=options.max_batch_tokens,
    )
    results = []
    print(f"{'tokens':>8} {'tok/s':>10} {'median ms':>10} {'min':>9} {'max':>9}")
    try:
        for count in options.tokens:
            prompts = random_prompts(
                core.runner.vocab_size, options.repeat + 1, count, options.seed + count
            )
            runs = [run_batch(core, [prompt], 1) for prompt in prompts][1:]  # the first warms up
            seconds = [run.seconds for run in runs]
            rate = count / median_of(seconds)
            shown = [milliseconds(s) for s in (median_of(seconds), min(seconds), max(seconds))]
            print(f"{count:>8} {rate:>10.0f} {shown[0]:>10} {shown[1]:>9} {shown[2]:>9}")
            results.append(
                {
                    "tokens": count,
                    "prompt_tokens_per_second": round(rate, 1),
                    "ms_p50": shown[0],
                    "ms_min": shown[1],
                    "ms_max": shown[2],
                }
            )
    finally:
        core.close()
    facts = {"subject": "prefill", "model": options.model, **machine_facts()}
    facts["max_batch_tokens"] = options.max_batch_tokens
    print(json.dumps({**facts, "num_runs": options.repeat, "results": results}))


if __name__ == "__main__":
    main()
