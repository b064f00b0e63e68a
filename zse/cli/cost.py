"""``zse cost``: the monthly cost of a model on each platform, always on or scaled to zero."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, complete_model

if TYPE_CHECKING:
    from zse.deploy.cost import Way
    from zse.models.memory import MemoryEstimate

app = App()


@app.command("cost")
def command(
    *,
    model: Annotated[str, Argument(metavar="[MODEL]", autocompletion=complete_model)] = "",
    requests_per_hour: Annotated[
        float, Option("--requests-per-hour", "-r", help="Requests that come, on average.")
    ] = 20.0,
    request_seconds: Annotated[
        float, Option(help="From a request to the end of its answer, with the model there.")
    ] = 3.0,
    wake_seconds: Annotated[
        float, Option(help="From the process's start to its first token: zse cold-start says it.")
    ] = 0.7,
    concurrency: Annotated[float, Option(help="Requests that one machine answers at once.")] = 8.0,
    idle_seconds: Annotated[
        float | None, Option(help="How long an idle machine is kept (default: as platforms do).")
    ] = None,
    slow_percent: Annotated[
        float | None, Option(help="Most requests that may wait for a wake; decides the former.")
    ] = None,
    memory_gib: Annotated[float, Option(help="What the model takes, in place of MODEL.")] = 0.0,
    context: Annotated[int, Option(help="Tokens of KV cache that must fit.")] = 0,
    platform: Annotated[
        list[str] | None, Option(help="Only this one; may be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare what platforms cost a month, and how many requests wait for a sleeping machine.

    Prices are list prices of the month that the table names: good to compare, not to bill.
    Requests come at random. The first one wakes a machine that is asleep, which stays until nobody
    has asked for the idle window.
    """
    from zse.deploy.cost import Traffic, ways
    from zse.errors import UsageError

    need = _need_of(model, context_tokens=context, memory_gib=memory_gib)
    traffic = Traffic(
        requests_per_hour=requests_per_hour,
        request_seconds=request_seconds,
        concurrency=concurrency,
        wake_seconds=wake_seconds,
    )
    found = ways(
        traffic,
        memory_bytes=need.total_bytes,
        idle_seconds=idle_seconds,
        most_slow_share=None if slow_percent is None else slow_percent / 100,
        platforms=platform or (),
    )
    if not found:
        raise UsageError(
            "no platform with a known price has a GPU that holds the model",
            hint="Convert it with a smaller scheme, or ask for a shorter context.",
        )
    if as_json:
        typer.echo(json.dumps([_facts(way) for way in found], indent=2))
    else:
        _show(found)


def _need_of(model: str, *, context_tokens: int, memory_gib: float) -> MemoryEstimate:
    """Return the memory that a model takes, or the one that is said in its place."""
    from zse.deploy.sizing import measure
    from zse.errors import UsageError
    from zse.models.registry import nearest_names
    from zse.settings import load_settings

    need = measure(
        model, load_settings(), on_gpu=True, context_tokens=context_tokens, memory_gib=memory_gib
    )
    if need is None:
        near = nearest_names(model)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            "the model's size is not known",
            hint=f"{meant}Give a .zse file, a model that `zse models list` names, or --memory-gib.",
        )
    return need


def _facts(way: Way) -> dict[str, Any]:
    return {
        **asdict(way),
        "usd_per_month": round(way.usd_per_month, 2),
        "slow_share": round(way.slow_share, 4),
    }


def _show(found: list[Way]) -> None:
    from zse.cli.titled_tables import Table, print_tables

    columns = ("platform", "machine", "kept", "USD a month", "wait for a wake", "for")
    rows = [_row(way) for way in found]
    print_tables([Table(title="cost", columns=columns, rows=rows)])
    cheapest, dates = found[0], sorted({way.prices_of for way in found})
    how = "always there" if cheapest.sleepy is None else "asleep while nobody asks"
    typer.echo(f"\ncheapest: {cheapest.title}, {cheapest.hardware}, {how}")
    typer.echo(f"list prices of {', '.join(dates)}: compare, do not bill")
    if any(way.sleepy is not None and not way.is_known for way in found):
        typer.echo("~ no source says what the platform adds to a start: 30 s are assumed")


def _row(way: Way) -> tuple[str, ...]:
    machine = f"{way.num_machines} x {way.machine}" if way.num_machines > 1 else way.machine
    money = f"{way.usd_per_month:,.2f}"
    if way.sleepy is None:
        return way.title, machine, "always", money, "none", ""
    kept = f"{way.sleepy.idle_seconds:,.0f} s after the last"
    wake = f"{'' if way.is_known else '~'}{way.sleepy.wake_seconds:.1f} s"
    return way.title, machine, kept, money, f"{way.slow_share:.1%}", wake
