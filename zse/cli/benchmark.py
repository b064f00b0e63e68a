"""``zse benchmark``: how fast a model reads a prompt and writes an answer on this machine."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from zse.cli.app import App
from zse.cli.parameters import Device, Json, Model, Quant
from zse.cli.transfer_display import size_text
from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from zse.models.runner import ModelRunner

_FIRST_TOKEN_ID = 3
"""Prompts are made of ordinary ids: the first few are usually special."""


@record
class BenchmarkResult:
    """One measurement. Speeds are tokens a second over all sequences."""

    model: str
    device: str
    """What it ran on, in words: where ``auto`` was asked for, what it came to."""
    prompt_tokens: int
    output_tokens: int
    batch: int
    load_seconds: float
    first_token_seconds: float
    """From a loaded model and ``batch`` prompts to the first token of each."""
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    file_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    peak_resident_bytes: int
    """Largest resident memory of the whole process, mapped pages of the file included."""


app = App()


@app.command("benchmark")
def command(
    model: Model = "tiny",
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(min=2)] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    quant: Quant = None,
    device: Device = None,
    threads: Annotated[
        int | None,
        typer.Option(min=0, help="CPU threads; 0 is one a core, within the quota."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure prefill and decode speed, memory and time to first token.

    MODEL is fetched or converted if needed; one batch runs.
    """
    from zse.cli.transfer_display import opening_progress
    from zse.engine.opening import locate_model
    from zse.models import load_runner
    from zse.settings import load_settings

    settings = load_settings()
    with opening_progress() as progress:
        path = locate_model(model, quant=quant, progress=progress)
    device = device or settings.serve.load.device.name
    started = time.perf_counter()
    total = prompt_tokens + output_tokens
    runner = load_runner(
        path,
        device=device,
        threads=settings.serve.load.device.threads if threads is None else threads,
        num_blocks=batch * -(-total // 32),
        block_size=32,
    )
    load_seconds = time.perf_counter() - started
    try:
        if total > runner.max_position:
            raise UsageError(
                f"{prompt_tokens} + {output_tokens} tokens are more than the model's "
                f"{runner.max_position}",
                hint="Lower --prompt-tokens or --output-tokens.",
            )
        first, prefill, decode = measure(runner, prompt_tokens, output_tokens, batch)
        memory = runner.memory_bytes()
    finally:
        runner.close()
    result = BenchmarkResult(
        model=model,
        device=str(runner.device),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        load_seconds=load_seconds,
        first_token_seconds=first,
        prefill_tokens_per_second=prefill,
        decode_tokens_per_second=decode,
        file_bytes=path.stat().st_size,
        weights_bytes=memory["weights"],
        kv_cache_bytes=memory["kv_cache"],
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    sys.stdout.write(json.dumps(asdict(result)) + "\n" if as_json else describe(result))


def measure(
    runner: ModelRunner, prompt_tokens: int, output_tokens: int, batch: int
) -> tuple[float, float, float]:
    """Run one batch of prompts to the end.

    Returns:
        Seconds to the first token, prompt tokens a second, decoded tokens a second.
    """
    from zse.backends.types import (
        SequenceChunk,
        StepBatch,
    )
    from zse.kernels.lm_head_sample.row import SamplingRow

    blocks_each = -(-(prompt_tokens + output_tokens) // runner.block_size)
    usable = max(runner.vocab_size - _FIRST_TOKEN_ID, 1)
    rows = [SamplingRow(temperature=0.0)] * batch

    def step(pending: list[list[int]], start: int) -> list[list[int]]:
        chunks = [
            SequenceChunk(
                sequence_slot=slot,
                token_ids=token_ids,
                start_position=start,
                block_table=range(slot * blocks_each, (slot + 1) * blocks_each),
            )
            for slot, token_ids in enumerate(pending)
        ]
        result = runner.execute(StepBatch(chunks=chunks, sampling=rows))
        return [[token.token_id] for token in result.sampled if token is not None]

    prompts = [
        [(_FIRST_TOKEN_ID + 7 * i + slot) % usable for i in range(prompt_tokens)]
        for slot in range(batch)
    ]
    step(step(prompts, 0), prompt_tokens)  # the first pass compiles kernels and touches pages
    started = time.perf_counter()
    pending = step(prompts, 0)
    first = time.perf_counter() - started
    for index in range(output_tokens - 1):
        pending = step(pending, prompt_tokens + index)
    decode = time.perf_counter() - started - first
    return first, batch * prompt_tokens / first, batch * (output_tokens - 1) / decode


def describe(result: BenchmarkResult) -> str:
    """Return the table that people read."""
    mib = 1024.0 * 1024.0
    lines = (
        ("model", f"{result.model} on {result.device}, batch {result.batch}"),
        ("tokens", f"{result.prompt_tokens} in, {result.output_tokens} out"),
        ("load", f"{result.load_seconds * 1000:.0f} ms"),
        ("first token", f"{result.first_token_seconds * 1000:.1f} ms"),
        ("prefill", f"{result.prefill_tokens_per_second:.1f} tokens/s"),
        ("decode", f"{result.decode_tokens_per_second:.1f} tokens/s"),
        ("file", size_text(result.file_bytes)),
        ("weights in memory", f"{result.weights_bytes / mib:.1f} MiB (the rest is mapped)"),
        ("KV cache", f"{result.kv_cache_bytes / mib:.1f} MiB"),
        ("peak resident", f"{result.peak_resident_bytes / mib:.1f} MiB"),
    )
    return "".join(f"{name:<18} {value}\n" for name, value in lines)
