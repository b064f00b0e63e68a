"""``zse benchmark``: how fast a model reads a prompt and writes an answer on this machine."""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from zse.cli.app import App
from zse.cli.parameters import Json, Model, Quant
from zse.cli.table_flags import with_flags_of
from zse.records import record
from zse.units import MIB, size_text

if TYPE_CHECKING:
    from pathlib import Path

    from zse.evaluate.speculation import SpeculationResult
    from zse.options import LoadOptions
    from zse.settings import Settings

_SPECULATION_ROUNDS = 3
_HEADINGS = ("text", "tokens", "accepted", "a step", "tokens/s", "without", "ratio", "same")
_COLUMNS = "{:<10} {:>6} {:>9} {:>7} {:>9} {:>9} {:>6} {:>5}\n"
_WARM_TOKENS = 2
"""The first pass compiles kernels and touches pages."""


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
_FLAGS = ["device", "threads", "kernels", "kv_dtype", "exact_activations", "deterministic"]
_FLAGS += ["prefill_precision", "prefill_weights", "speculate", "draft_model"]
_FLAGS += ["early_exit_layers"]
_FLAGS += ["tensor_parallel", "pipeline_parallel", "gpus"]


@app.command("benchmark")
@with_flags_of(_FLAGS)
def command(
    *,
    model: Model = "tiny",
    prompt_tokens: Annotated[int, Option(min=1, help="Of each sequence.")] = 128,
    output_tokens: Annotated[int, Option(min=2, help="Of each answer.")] = 64,
    batch: Annotated[int, Option(min=1, help="Sequences.")] = 1,
    quant: Quant = None,
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """Measure prefill and decode speed, memory and time to first token.

    MODEL is fetched or converted if needed; the engine answers one batch of random prompts. With
    --speculate, or --draft-model, it answers built-in texts with drafts and without instead: an
    edit of code, an agent's task, a retrieval, a chat.
    """
    from zse.cli.transfer_display import shown_progress
    from zse.engine.meter import core_over, open_runner, random_prompts, run_batch
    from zse.option import with_flags, with_values
    from zse.quantize.locate import locate_model
    from zse.settings import load_settings

    settings = load_settings()
    with shown_progress() as progress:
        path = locate_model(model, settings, quant=quant, progress=progress)
    options = with_flags(settings.serve.load, given)
    options = with_values(options, {"max_running": batch})
    if given["speculate"] or given["draft_model"]:
        _show_speculation(path, options, settings, output_tokens, as_json=as_json)
        return
    started = time.perf_counter()
    runner = open_runner(path, options, settings, num_tokens=prompt_tokens + output_tokens)
    load_seconds = time.perf_counter() - started
    with closing(core_over(runner, options)) as core:
        prompts = random_prompts(runner.vocab_size, batch, prompt_tokens, seed=0)
        run_batch(core, prompts, _WARM_TOKENS)
        run = run_batch(core, prompts, output_tokens)
        memory, device = runner.memory_bytes(), str(runner.device)
    result = BenchmarkResult(
        model=model,
        device=device,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        load_seconds=load_seconds,
        first_token_seconds=max(run.first_token_seconds),
        prefill_tokens_per_second=run.prompt_rate,
        decode_tokens_per_second=run.decode_rate,
        file_bytes=path.stat().st_size,
        weights_bytes=memory["weights"],
        kv_cache_bytes=memory["kv_cache"],
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    sys.stdout.write(json.dumps(asdict(result)) + "\n" if as_json else describe(result))


def describe(result: BenchmarkResult) -> str:
    lines = (
        ("model", f"{result.model} on {result.device}, batch {result.batch}"),
        ("tokens", f"{result.prompt_tokens} in, {result.output_tokens} out"),
        ("load", f"{result.load_seconds * 1000:.0f} ms"),
        ("first token", f"{result.first_token_seconds * 1000:.1f} ms"),
        ("prefill", f"{result.prefill_tokens_per_second:.1f} tokens/s"),
        ("decode", f"{result.decode_tokens_per_second:.1f} tokens/s"),
        ("file", size_text(result.file_bytes)),
        ("weights in memory", f"{result.weights_bytes / MIB:.1f} MiB (the rest is mapped)"),
        ("KV cache", f"{result.kv_cache_bytes / MIB:.1f} MiB"),
        ("peak resident", f"{result.peak_resident_bytes / MIB:.1f} MiB"),
    )
    return "".join(f"{name:<18} {value}\n" for name, value in lines)


def _show_speculation(
    path: Path, options: LoadOptions, settings: Settings, output_tokens: int, *, as_json: bool
) -> None:
    """Print what drafts are worth on each of the built-in texts, as it becomes known."""
    from zse.engine.loading import load_model
    from zse.evaluate.speculation import measure_speculation
    from zse.option import with_values

    options = with_values(options, {"prefix_cache": False})
    with closing(load_model(path, options, settings)) as model:
        if not as_json:
            sys.stdout.write(_COLUMNS.format(*_HEADINGS))
        for one in measure_speculation(
            model, options, num_output=output_tokens, rounds=_SPECULATION_ROUNDS
        ):
            row = json.dumps({**asdict(one), "speedup": one.speedup}) + "\n"
            sys.stdout.write(row if as_json else _speculation_row(one))
            sys.stdout.flush()


def _speculation_row(result: SpeculationResult) -> str:
    return _COLUMNS.format(
        result.text,
        result.output_tokens,
        f"{result.acceptance:.0%}",
        f"{result.tokens_per_step:.2f}",
        f"{result.tokens_per_second:.1f}",
        f"{result.tokens_per_second_without:.1f}",
        f"{result.speedup:.2f}",
        "yes" if result.is_same_answer else "no",
    )
