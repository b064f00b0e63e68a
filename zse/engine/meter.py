"""How fast the engine answers: batches of requests that arrive together, every answer as long."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.errors import UsageError
from zse.models.runner import load_runner
from zse.option import with_values
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zse.engine.encoder_core import AnyCore
    from zse.models.runner import ModelRunner
    from zse.options import LoadOptions
    from zse.settings import Settings
    from zse.text.grammar.state import Grammar

_request_ids = itertools.count()


@record
class TimedRun:
    """A batch of requests that arrived together and ended together."""

    prompt_tokens: int
    output_tokens: int
    seconds: float
    """From the first arrival to the last token."""
    first_token_seconds: list[float]
    """From arrival to the first token, each request's."""
    decode_tokens: int
    """Output tokens while all requests decode: from the last first one to the first last one."""
    decode_seconds: float
    step_seconds: list[float]
    """Each step of that phase."""

    @property
    def decode_rate(self) -> float:
        """Output tokens a second while every request decodes; 0 where they never do at once."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def output_rate(self) -> float:
        """Output tokens a second, prefill included."""
        return self.output_tokens / self.seconds

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second until the last request had its first token."""
        return self.prompt_tokens / max(self.first_token_seconds)


def open_runner(
    path: str | Path, options: LoadOptions, settings: Settings, *, num_tokens: int
) -> ModelRunner:
    """Place a model whose KV cache holds ``max_sequences`` of ``num_tokens`` each.

    These are of prompt and answer together. A file without a tokenizer will do.

    Raises:
        UsageError: The model takes no sequence that long.
        DeviceError: The device is absent or too small.
    """
    blocks_each = -(-num_tokens // options.cache.block_size) + 1
    num_blocks = blocks_each * options.batch.max_sequences
    options = with_values(options, {"num_blocks": num_blocks})
    if options.ranks.num_devices > 1:
        from zse.engine.ranks.opening import load_ranked_runner

        runner = load_ranked_runner(path, options, cache_dir=settings.cache_dir)
    else:
        runner = load_runner(path, options, cache_dir=settings.cache_dir)
    if num_tokens > runner.max_position:
        runner.close()
        raise UsageError(
            f"{num_tokens} tokens are more than the model's {runner.max_position}",
            hint="Ask for shorter prompts or answers.",
        )
    return runner


def core_over(runner: ModelRunner, options: LoadOptions) -> AnyCore:
    """Return an engine over a runner, which it closes; no prompt is found in a cache.

    Every token takes a step: of random prompts nothing that follows tells of real ones.
    """
    return make_core(runner, with_values(options, {"prefix_cache": False, "speculate": "off"}))


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Return ``count`` prompts of ``length`` tokens; the same seed gives the same."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def run_batch(
    core: AnyCore,
    prompts: Sequence[list[int]],
    num_output: int,
    *,
    repetition_penalty: float = 1.0,
    grammars: Sequence[Grammar | None] = (),
) -> TimedRun:
    """Answer all prompts greedily with exactly ``num_output`` tokens each.

    ``grammars`` hold the first answers to forms that leave room for so many tokens.
    """
    params = SamplingParams(
        max_tokens=num_output,
        temperature=0.0,
        repetition_penalty=repetition_penalty,
        ignore_eos=True,
    )
    began = now = time.perf_counter()
    for prompt, grammar in itertools.zip_longest(prompts, grammars):
        core.add_request(
            Request(
                request_id=str(next(_request_ids)),
                prompt_token_ids=prompt,
                params=params,
                grammar=grammar,
            )
        )
    first: dict[str, float] = {}
    counts: Counter[str] = Counter()
    steps: list[tuple[float, int]] = []  # (end, tokens so far) while every request decodes
    num_tokens = 0
    anyone_ended = False
    while core.has_work:
        events = core.step()
        now = time.perf_counter()
        for event in events:
            first.setdefault(event.request_id, now - began)
            counts[event.request_id] += 1
        num_tokens += len(events)
        if len(first) == len(prompts) and events and not anyone_ended:
            steps.append((now, num_tokens))
        anyone_ended = anyone_ended or num_output in counts.values()
    short = [count for count in counts.values() if count != num_output]
    if short or len(counts) != len(prompts):
        raise AssertionError(f"{len(prompts)} requests gave {dict(counts)} tokens")
    return TimedRun(
        prompt_tokens=sum(map(len, prompts)),
        output_tokens=num_tokens,
        seconds=now - began,
        first_token_seconds=sorted(first.values()),
        decode_tokens=steps[-1][1] - steps[0][1] if steps else 0,
        decode_seconds=steps[-1][0] - steps[0][0] if steps else 0.0,
        step_seconds=[after[0] - before[0] for before, after in itertools.pairwise(steps)],
    )
