"""``zse eval --task humaneval``: how many programs that a model writes pass their tests."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.evaluate.code.chances import Difference, Estimate
    from zse.evaluate.code.task import CodeTask, Written
    from zse.evaluate.code.writing import Asked
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings

_HELD = {
    "namespaces": "in a root of their own, without a network",
    "landlock": "by Landlock and limits, without TCP: this kernel gives no namespaces",
    "limits": "by limits alone: this kernel has neither namespaces nor Landlock for them, so "
    "they could have used the network and read files",
}


@record
class TaskFlags:
    """What the command line said of the task."""

    model: str
    against: str | None
    quant: str | None
    problems: Path | None
    answers: Path | None
    samples: int
    temperature: float
    max_tokens: int


def run_task(flags: TaskFlags, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Grade the model, and the one that it is held against; say what came of it.

    Raises:
        NotFoundError: The problems are not here.
        UsageError: The file holds none, or several equal answers were asked for.
        SandboxError: Programs cannot be run here.
    """
    from zse.cli.transfer_display import shown_counts
    from zse.evaluate.code.task import CodeTask
    from zse.evaluate.sandbox.run import strongest_mode
    from zse.option import with_flags
    from zse.settings import load_settings

    settings = load_settings()
    options = with_flags(settings.serve.load, given)
    task = _task_of(flags, CodeTask)
    strongest_mode()  # nothing is written where nothing can be run
    with shown_counts("answers") as show:
        other = None
        if flags.against is not None:
            other = _other(task, flags.against, options, settings, show)
        path = _located(flags.model, flags.quant, settings)
        found = task.of_model(path, options, flags.answers, show)
    figures = {
        "task": "humaneval",
        "model": flags.model,
        "against": flags.against,
        **asdict(task.how),
        **_figures(task, found, other),
    }
    shown = json.dumps(figures) + "\n" if as_json else describe(found, other, flags.against)
    sys.stdout.write(shown)


def describe(found: Written, other: Written | None, against: str | None) -> str:
    """Return the figures in words, a line each."""
    graded = found.graded
    chances = graded.pass_at_k()
    lines = [("problems", f"{len(graded.passed)}, {graded.samples} answers each")]
    lines += [(f"pass@{k}", _percent(chance)) for k, chance in chances.items()]
    if other is not None:
        apart = graded.beside(other.graded)
        lines += [
            (f"of {Path(str(against)).name}", _percent(other.graded.pass_at_k()[1])),
            ("difference", _points(apart)),
            ("gained", ", ".join(graded.gained(other.graded)) or "none"),
            ("lost", ", ".join(other.graded.gained(graded)) or "none"),
        ]
    lines += [
        ("programs", ", ".join(f"{count} {word}" for word, count in graded.outcomes.items())),
        ("held", _HELD[graded.mode]),
    ]
    width = max(len(name) for name, _ in lines) + 2
    return "".join(f"{name:<{width}}{value}\n" for name, value in lines)


def _task_of(flags: TaskFlags, kind: type[CodeTask]) -> CodeTask:
    from zse.evaluate.code.problems import find_problems, read_problems
    from zse.evaluate.code.writing import Asked

    if flags.samples > 1 and not flags.temperature:
        raise UsageError(
            f"{flags.samples} samples at temperature 0 would be equal",
            hint="Give --temperature, such as 0.2.",
        )
    how: Asked = Asked(
        samples=flags.samples, temperature=flags.temperature, max_tokens=flags.max_tokens
    )
    return kind(problems=read_problems(flags.problems or find_problems()), how=how)


def _other(
    task: CodeTask, against: str, options: LoadOptions, settings: Settings, show: StageProgress
) -> Written:
    """Grade a file of answers, or a model: a checkpoint at its own 16 bits."""
    from zse.engine.requirements import read_facts
    from zse.option import with_values
    from zse.options import UNROUNDED

    path = Path(against)
    if path.suffix == ".jsonl":
        return task.of_file(path, show)
    quant = read_facts(against, settings).plain_quantization if path.is_dir() else None
    plain = with_values(options, UNROUNDED)
    return task.of_model(_located(against, quant, settings), plain, None, show)


def _located(model: str, quant: str | None, settings: Settings) -> Path:
    from zse.cli.transfer_display import shown_progress
    from zse.quantize.locate import locate_model

    with shown_progress() as progress:
        return locate_model(model, settings, quant=quant, progress=progress)


def _figures(task: CodeTask, found: Written, other: Written | None) -> dict[str, Any]:
    """Return the figures by names that say their units; an interval has its ends."""
    graded = found.graded
    figures: dict[str, Any] = {
        "num_problems": len(task.problems),
        "num_tokens": found.num_tokens,
        "num_ended": found.num_ended,
        "outcomes": graded.outcomes,
        "held": graded.mode,
    }
    for k, chance in graded.pass_at_k().items():
        figures |= _ends(f"pass_at_{k}", chance)
    if other is not None:
        apart = graded.beside(other.graded)
        figures |= _ends("against_pass_at_1", other.graded.pass_at_k()[1])
        figures |= _ends("difference", apart.mean)
        figures |= {
            "num_only_this": apart.num_only_this,
            "num_only_other": apart.num_only_other,
            "gained": graded.gained(other.graded),
            "lost": other.graded.gained(graded),
            "chance": apart.chance,
        }
    return figures


def _ends(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _percent(found: Estimate) -> str:
    return f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def _points(apart: Difference) -> str:
    mean = apart.mean
    ends = f"{mean.low * 100:+.1f} to {mean.high * 100:+.1f}"
    return (
        f"{mean.value * 100:+.1f} points ({ends}); {apart.num_only_this} more solved here, "
        f"{apart.num_only_other} there: by chance alone at {apart.chance:.2f}"
    )
