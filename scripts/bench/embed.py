"""How many texts become vectors in a second: random ones of one length, the prefix cache off.

    python scripts/bench/embed.py MODEL.zse --tokens 512 --texts 512

Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import time

from engine_runs import add_device_arguments, median_of, open_core, whole_numbers
from machine import machine_facts

from zse.engine.meter import random_prompts
from zse.engine.vectors import read_vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--tokens", type=whole_numbers, default=[512], help="of a text")
    parser.add_argument("--texts", type=int, default=512, help="of a run")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=64, help="texts read at once")
    parser.add_argument("--max-batch-tokens", type=int, default=16384, help="budget of a step")
    add_device_arguments(parser)
    options = parser.parse_args()
    core = open_core(
        options,
        num_tokens=max(options.tokens) + 1,
        max_sequences=options.sequences,
        max_batch_tokens=options.max_batch_tokens,
    )
    results = []
    print(f"{'tokens':>8} {'texts/s':>10} {'tok/s':>10}")
    try:
        for count in options.tokens:
            rates = []
            for run in range(options.repeat + 1):
                prompts = random_prompts(core.runner.vocab_size, options.texts, count, run)
                started = time.perf_counter()
                read_vectors(core, prompts, "last")
                rates.append(options.texts / (time.perf_counter() - started))
            rate = median_of(rates[1:])  # the first one warms up
            print(f"{count:>8} {rate:>10.0f} {rate * count:>10.0f}")
            results.append({"tokens": count, "texts_per_second": round(rate, 1)})
    finally:
        core.close()
    facts = {"subject": "embed", "model": options.model, **machine_facts()}
    facts |= {"max_batch_tokens": options.max_batch_tokens, "num_texts": options.texts}
    print(json.dumps({**facts, "num_runs": options.repeat, "results": results}))


if __name__ == "__main__":
    main()
