"""How long a prompt takes whose prefix lies in host memory, beside one that is computed.

    python scripts/bench/host_tier.py model.zse --device cuda [--tokens 16384] [--kv-dtype int8]

The pool holds one and a half such prompts, so each pushes the one before it out. Prints the time of
the first token of a prompt that nobody knows, of one whose prefix is on the device, and of one that
comes back, with the bytes that came and their speed; and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine_facts

from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.engine.core import EngineCore

BLOCK = 32


def first_token_ms(core: EngineCore, prompt: list[int], number: list[int]) -> float:
    number[0] += 1
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    started = time.perf_counter()
    core.add_request(Request(request_id=f"r{number[0]}", prompt_token_ids=prompt, params=params))
    while core.has_work:
        core.step()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--host-gib", type=float, default=6.0)
    options = parser.parse_args()
    settings = load_settings()
    load = load_options(
        device=options.device,
        kv_dtype=options.kv_dtype,
        num_blocks=options.tokens // BLOCK * 3 // 2,
        max_context=options.tokens + BLOCK,
        prefix_host_gib=options.host_gib,
        max_sequences=2,
        kernels=settings.serve.load.device.kernels,
    )
    runner = load_runner(options.model, load, cache_dir=settings.cache_dir)
    core, number, rng = make_core(runner, load), [0], random.Random(1)
    assert core.cache.tier is not None
    core.cache.tier._host.wait_until_pinned()
    texts = [
        [rng.randrange(runner.vocab_size) for _ in range(options.tokens)]
        for _ in range(options.repeat + 2)
    ]
    first_token_ms(core, texts[0], number)  # kernels are loaded by it
    computed = [first_token_ms(core, text, number) for text in texts[1:-1]]
    here = [first_token_ms(core, texts[-2], number) for _ in range(options.repeat)]
    first_token_ms(core, texts[-1], number)
    before = core.stats().host_hit_tokens
    back = [first_token_ms(core, text, number) for text in texts[1 : 1 + options.repeat]]
    stats = core.stats()
    tokens = (stats.host_hit_tokens - before) / options.repeat
    gigabytes = tokens / BLOCK * runner.kv_images.block_bytes[0] / 1e9
    spent = statistics.median(back) - statistics.median(here)
    figures = {
        "computed_ms": statistics.median(computed),
        "on_device_ms": statistics.median(here),
        "from_host_ms": statistics.median(back),
        "tokens_back": tokens,
        "gigabytes_back": gigabytes,
        "gigabytes_per_second": gigabytes / spent * 1e3 if spent > 0 else 0.0,
    }
    for name, value in figures.items():
        print(f"{name:<22} {value:12.2f}")
    facts = {"tokens": options.tokens, "kv_dtype": options.kv_dtype, **machine_facts()}
    print(json.dumps({"benchmark": "host_tier", **facts, **figures}))
    core.close()


if __name__ == "__main__":
    main()
