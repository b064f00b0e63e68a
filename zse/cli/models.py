"""`zse models`: the open models that are known, whether zse runs them, and what they need here."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option

from zse.cli.app import App, say
from zse.cli.info import MaxContext
from zse.cli.parameters import Json
from zse.errors import UnsupportedModelError, UsageError
from zse.models.registry import Category, find_known, known_names, search_models, select_models
from zse.units import GIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.memory import MemoryEstimate
    from zse.models.registry import KnownModel
    from zse.serve.admin.memory import Room

app = App(help="List, search, check and download the open models that zse knows.")


def complete_known(incomplete: str) -> list[str]:
    """Offer the models of the registry."""
    return [name for name in known_names() if name.startswith(incomplete)]


Known = Annotated[
    str,
    Argument(metavar="ID", help="OWNER/NAME, as the hub has it.", autocompletion=complete_known),
]


Checked = Annotated[
    str,
    Argument(metavar="ID", help="OWNER/NAME, or a file or folder.", autocompletion=complete_known),
]


@app.command("list")
def list_command(
    recommended: Annotated[
        bool, Option("-r", "--recommended", help="Only what to try first.")
    ] = False,
    category: Annotated[Category | None, Option("-c", "--category", help="Only these.")] = None,
    vram: Annotated[
        float | None,
        Option("-v", "--vram", metavar="GIB", help="Only what fits a GPU of so much, at INT4."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List models with the memory of each.

    The memory is that on a GPU with 4096 tokens of context.
    """
    if vram is not None and not 0 < vram < math.inf:
        raise UsageError(f"--vram {vram} is no size of a memory", hint="Write GiB: --vram 24.")
    limit = None if vram is None else vram * GIB
    found = select_models(category=category, is_recommended=recommended, largest_bytes=limit)
    _show_known(found, as_json=as_json)


@app.command("search")
def search_command(
    words: Annotated[list[str], Argument(metavar="WORDS", help="All of them, in any case.")],
    as_json: Json = False,
) -> None:
    """List the models whose names have these words.

    Every word must be in the name or the category.
    """
    _show_known(search_models(" ".join(words)), as_json=as_json)


@app.command("info")
def info_command(model: Known, max_context: MaxContext = 0, as_json: Json = False) -> None:
    """Show a model as `zse info` does, and where its numbers come from."""
    from zse.cli.model_report import describe_model, show_model

    known = find_known(model)
    report = {
        "model": known.repository,
        "category": known.category,
        "recommended": "yes" if known.is_recommended else "no",
        "source": known.source,
        "recorded": known.recorded.isoformat(),
        "architecture": known.architecture,
    }
    show_model(report | describe_model(model, known.facts, max_context), as_json=as_json)


@app.command("check")
def check_command(model: Checked, max_context: MaxContext = 0, as_json: Json = False) -> None:
    """Say whether zse can run a model on this machine.

    It looks at the architecture and at the memory of this machine. The exit code is 1 if the
    architecture is not supported, or if no scheme fits.
    """
    from zse.engine.recorded import recorded_facts
    from zse.models.memory import estimates_of
    from zse.serve.admin.memory import room_for_models
    from zse.settings import load_settings

    settings = load_settings()
    room = room_for_models(settings.serve, ())
    estimates: list[MemoryEstimate] = []
    reason = ""
    try:
        facts = recorded_facts(model, settings)
        estimates = estimates_of(facts, on_gpu=room.on_gpu, context_tokens=max_context)
    except UnsupportedModelError as error:
        reason = error.message
    report = _verdict(model, reason, estimates, room)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_verdict(report)
    if not report["fits"]:
        raise Exit(code=1)


@app.command("pull")
def pull_command(model: Known, as_json: Json = False) -> None:
    """Download a model into the hub's cache.

    `zse convert` and `zse serve` find it there.
    """
    repository = find_known(model).repository
    from zse.quantize.source import resolve_source
    from zse.settings import load_settings
    from zse.units import size_text

    say(f"fetching {repository}")
    source = resolve_source(repository, load_settings())
    size_bytes = sum(path.stat().st_size for path in source.files() if path.is_file())
    if as_json:
        facts = {"model": repository, "path": str(source.path), "revision": source.revision}
        typer.echo(json.dumps(facts | {"size_bytes": size_bytes}))
        return
    typer.echo(source.path)
    say(f"{size_text(size_bytes)}; next: zse convert {repository} -o model.zse")


def _show_known(models: Sequence[KnownModel], *, as_json: bool) -> None:
    from zse.cli.model_report import NO_GPU
    from zse.cli.titled_tables import Table, print_tables

    rows = list(map(_describe_known, models))
    if as_json:
        typer.echo(json.dumps({"total": len(rows), "models": rows}, indent=2))
        return
    schemes = list(rows[0]["memory_bytes"]) if rows else []
    table = [
        (
            row["id"],
            row["category"],
            _count_text(row["parameters"]),
            f"{row['max_context']:,}",
            *(memory_text(size) for size in row["memory_bytes"].values()),
            row["smallest_gpu"] or NO_GPU,
        )
        for row in rows
    ]
    columns = ("id", "category", "parameters", "context", *schemes, "smallest gpu at int4")
    print_tables([Table(title="models", columns=columns, rows=table)])
    say(f"{len(rows)} models")


def _describe_known(model: KnownModel) -> dict[str, Any]:
    from zse.cli.model_report import gpu_name
    from zse.models.memory import estimates_of

    estimates = estimates_of(model.facts, on_gpu=True)
    return {
        "id": model.repository,
        "category": model.category,
        "recommended": model.is_recommended,
        "architecture": model.architecture,
        "parameters": model.num_parameters,
        "max_context": model.max_context,
        "memory_bytes": {one.quantization: one.total_bytes for one in estimates},
        "smallest_gpu": gpu_name(estimates[0]),
        "source": model.source,
        "recorded": model.recorded.isoformat(),
    }


def _count_text(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _verdict(
    model: str, reason: str, estimates: Sequence[MemoryEstimate], room: Room
) -> dict[str, Any]:
    fitting = [room.holds(one) for one in estimates]
    return {
        "model": model,
        "supported": not reason,
        "reason": reason or None,
        "device": "gpu" if room.on_gpu else "cpu",
        "left_bytes": room.left_bytes,
        "fits": any(fitting),
        "estimates": [
            one.to_json() | {"fits": is_fitting}
            for one, is_fitting in zip(estimates, fitting, strict=True)
        ],
    }


def _print_verdict(report: dict[str, Any]) -> None:
    if not report["supported"]:
        typer.echo(f"no: {report['reason']}")
        return
    device, left = report["device"].upper(), memory_text(report["left_bytes"])
    typer.echo(f"yes: zse runs it. Here, on the {device} with {left} free:")
    for one in report["estimates"]:
        needs = f"needs {memory_text(one['total_bytes'])}, {one['context_tokens']} tokens"
        fits = "fits" if one["fits"] else "does not fit"
        typer.echo(f"  {one['quantization']:<6} {fits}: {needs} of context")
