"""What a step, checks of drafts and guesses by first layers take, each waited for.

Random weights say nothing of how often drafts stand, so the costs alone are measured.

    python scripts/bench/draft_costs.py model.zse --device cuda --layers 1,3,7,14
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.types import SequenceChunk, StepBatch
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.decoder import forward_of
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_TOKENS = 512
CHECKED_ROWS = (2, 3, 4, 6, 8, 11)
GREEDY = SamplingRow(temperature=0.0)
WARM_ROUNDS, ROUNDS = 20, 300


def tokens_of(count: int, kind: str, *, start: int = CONTEXT_TOKENS) -> StepBatch:
    """Return a step of one sequence: each token of it, or of a prompt the last, is followed."""
    chunk = SequenceChunk(0, [7] * count, start, list(range(32)), kind)  # type: ignore[arg-type]
    return StepBatch(chunks=[chunk], sampling=[[GREEDY] * (1 if kind == "prefill" else count)])


def report(name: str, call: Callable[[], object]) -> None:
    for _ in range(WARM_ROUNDS):
        call()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    took.sort()
    print(f"{name:28} median {1e6 * took[ROUNDS // 2]:8.0f} us, least {1e6 * took[0]:8.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", default="", help="first layers that guess, such as 1,3,7")
    asked = parser.parse_args()
    settings = load_settings()
    speculate = "early-exit" if asked.layers else "suffix"
    options = load_options(
        device=asked.device,
        num_blocks=64,
        max_sequences=8,
        speculate=speculate,
        kernels=settings.serve.load.device.kernels,
    )
    with closing(load_runner(asked.model, options, cache_dir=settings.cache_dir)) as runner:
        runner.execute(tokens_of(CONTEXT_TOKENS, "prefill", start=0))
        report("step of one row", lambda: runner.execute(tokens_of(1, "decode")))
        for rows in CHECKED_ROWS:
            report(f"check of {rows} rows", lambda n=rows: runner.execute(tokens_of(n, "verify")))
        for depth in map(int, filter(None, asked.layers.split(","))):
            first = forward_of(replace(runner.spec, layers=runner.spec.layers[:depth]))
            report(
                f"guess by {depth} layers",
                lambda f=first: runner.guess(tokens_of(1, "decode"), f),
            )


if __name__ == "__main__":
    main()
