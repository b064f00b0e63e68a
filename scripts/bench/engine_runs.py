"""What the engine's benchmarks share: a core without a tokenizer, random prompts, one timed run."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zse.engine.core import EngineCore, EngineOptions
from zse.engine.request import Request, SamplingParams
from zse.errors import UsageError
from zse.models import load_runner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_request_ids = itertools.count()


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A batch of requests that arrived together and ended together."""

    prompt_tokens: int
    output_tokens: int
    seconds: float
    """From the first arrival to the last token."""
    first_token_seconds: list[float]
    """From arrival to the first token, each request's."""
    decode_tokens: int
    """Output tokens after every request had its first."""
    decode_seconds: float
    step_seconds: list[float]
    """Each step of that phase."""

    @property
    def decode_rate(self) -> float:
        """Output tokens a second once every request decodes."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def output_rate(self) -> float:
        """Output tokens a second, prefill included."""
        return self.output_tokens / self.seconds

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second until the last request had its first token."""
        return self.prompt_tokens / max(self.first_token_seconds)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--kv-dtype", default="auto", help="auto, fp32, bf16 or int8")
    parser.add_argument("--exact-activations", action="store_true", help="no 8-bit activations")
    parser.add_argument(
        "--kernels", default="", help="kernel pack; empty looks in the usual places"
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is all")
    parser.add_argument("--seed", type=int, default=0)


def whole_numbers(text: str) -> list[int]:
    """Read ``1,8,32``."""
    return [int(word) for word in text.split(",")]


def open_core(
    options: argparse.Namespace,
    *,
    num_tokens: int,
    max_sequences: int,
    max_batch_tokens: int,
    block_size: int = 32,
) -> EngineCore:
    """Open a model with a KV cache for ``max_sequences`` of ``num_tokens`` each."""
    blocks_each = -(-num_tokens // block_size) + 1
    runner = load_runner(
        options.model,
        device=options.device,
        num_blocks=blocks_each * max_sequences,
        block_size=block_size,
        threads=options.threads,
        kv_dtype=options.kv_dtype,
        exact_activations=options.exact_activations,
        kernels=options.kernels,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
    )
    if num_tokens > runner.max_position:
        taken = runner.max_position
        runner.close()
        raise UsageError(f"{num_tokens} tokens are more than the {taken} that the model takes")
    return EngineCore(
        runner,
        EngineOptions(
            max_batch_tokens=max_batch_tokens, max_sequences=max_sequences, prefix_cache=False
        ),
    )


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def run_batch(
    core: EngineCore,
    prompts: Sequence[list[int]],
    num_output: int,
    *,
    repetition_penalty: float = 1.0,
) -> TimedRun:
    """Answer all prompts greedily with exactly ``num_output`` tokens each."""
    params = SamplingParams(
        max_tokens=num_output,
        temperature=0.0,
        repetition_penalty=repetition_penalty,
        ignore_eos=True,
    )
    began = time.perf_counter()
    for prompt in prompts:
        core.add_request(
            Request(request_id=str(next(_request_ids)), prompt_token_ids=prompt, params=params)
        )
    first: dict[str, float] = {}
    counts: Counter[str] = Counter()
    steps: list[tuple[float, int]] = []  # (end, tokens so far) once every request decodes
    num_tokens = 0
    while core.has_work:
        events = core.step()
        now = time.perf_counter()
        for event in events:
            first.setdefault(event.request_id, now - began)
            counts[event.request_id] += 1
        num_tokens += len(events)
        if len(first) == len(prompts) and events:
            steps.append((now, num_tokens))
    short = [count for count in counts.values() if count != num_output]
    if short or len(counts) != len(prompts):
        raise SystemExit(f"{len(prompts)} requests gave {dict(counts)} tokens")
    return TimedRun(
        prompt_tokens=sum(map(len, prompts)),
        output_tokens=num_tokens,
        seconds=steps[-1][0] - began,
        first_token_seconds=sorted(first.values()),
        decode_tokens=steps[-1][1] - steps[0][1],
        decode_seconds=steps[-1][0] - steps[0][0],
        step_seconds=[after[0] - before[0] for before, after in itertools.pairwise(steps)],
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def middle(runs: Sequence[TimedRun]) -> TimedRun:
    """Return the run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def median_of(values: Sequence[float]) -> float:
    return statistics.median(values)
