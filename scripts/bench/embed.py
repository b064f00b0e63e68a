"""How many texts become vectors in a second: random ones of one length, the prefix cache off.

    python scripts/bench/embed.py MODEL.zse --tokens 512 --texts 512
    python scripts/bench/embed.py MODEL.zse --tokens 128 --texts 64 --beside CHECKPOINT

With an encoder's checkpoint, transformers makes the vectors of the same texts in turn with zse, in
float32, in the batches of 32 that are usual. Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from engine_runs import add_device_arguments, median_of, open_core, whole_numbers
from machine import machine_facts

from zse.engine.meter import random_prompts
from zse.engine.vectors import read_vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.encoder_core import AnyCore

PEER_TEXTS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--tokens", type=whole_numbers, default=[512], help="of a text")
    parser.add_argument("--texts", type=int, default=512, help="of a run")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=64, help="texts read at once")
    parser.add_argument("--max-batch-tokens", type=int, default=16384, help="budget of a step")
    parser.add_argument("--beside", default="", help="folder of its checkpoint, for transformers")
    add_device_arguments(parser)
    options = parser.parse_args()
    core = open_core(
        options,
        num_tokens=max(options.tokens) + 1,
        max_sequences=options.sequences,
        max_batch_tokens=options.max_batch_tokens,
    )
    ways = {"zse": lambda prompts: read_vectors(core, prompts, _pooling_of(core))}
    if options.beside:
        ways["transformers"] = transformers_way(options.beside, options.threads)
    results = []
    print(f"{'tokens':>8} {'way':>13} {'texts/s':>10} {'tok/s':>10}")
    try:
        for count in options.tokens:
            for way, rate in rates_of(ways, core.runner.vocab_size, count, options).items():
                print(f"{count:>8} {way:>13} {rate:>10.1f} {rate * count:>10.0f}")
                result = {"tokens": count, "way": way, "texts_per_second": round(rate, 1)}
                results.append(result)
    finally:
        core.close()
    facts = {"subject": "embed", "model": options.model, **machine_facts()}
    facts |= {"max_batch_tokens": options.max_batch_tokens, "num_texts": options.texts}
    print(json.dumps({**facts, "num_runs": options.repeat, "results": results}))


def rates_of(
    ways: dict[str, Callable[[list[list[int]]], object]],
    vocab_size: int,
    num_tokens: int,
    options: argparse.Namespace,
) -> dict[str, float]:
    """Return the median of each way's texts a second; they take turns, the first warms up."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for run in range(options.repeat + 1):
        prompts = random_prompts(vocab_size, options.texts, num_tokens, run)
        for way, read in ways.items():
            started = time.perf_counter()
            read(prompts)
            rates[way].append(options.texts / (time.perf_counter() - started))
    return {way: median_of(found[1:]) for way, found in rates.items()}


def transformers_way(
    checkpoint: str, num_threads: int
) -> Callable[[Sequence[list[int]]], list[Any]]:
    """Return what makes vectors of texts of one length with transformers: means of states."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(num_threads or torch.get_num_threads())
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def read(prompts: Sequence[list[int]]) -> list[Any]:
        found: list[Any] = []
        with torch.inference_mode():
            for first in range(0, len(prompts), PEER_TEXTS):
                ids = torch.tensor(prompts[first : first + PEER_TEXTS])
                found += model(ids).last_hidden_state.mean(1).tolist()
        return found

    return read


def _pooling_of(core: AnyCore) -> Any:
    usual = core.runner.spec.head.pooling
    return "last" if usual == "none" else usual


if __name__ == "__main__":
    main()
