"""``zse cold-start``: how long an endpoint that was asleep takes to answer."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Json, complete_model
from zse.cli.table_flags import with_flags_of

if TYPE_CHECKING:
    from zse.deploy.measure.start import Subject


app = App()


def _over_zero(value: float | None) -> float | None:
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value} is not in the range x>0.")
    return value


@app.command("cold-start")
@with_flags_of(["device"])
def command(
    *,
    subject: Annotated[
        str, Argument(metavar="IMAGE|oci:DIR|MODEL", autocompletion=complete_model)
    ] = "tiny",
    budget_ms: Annotated[
        float | None,
        Option(callback=_over_zero, help="Fail when the median of the first token is later."),
    ] = None,
    repeat: Annotated[int, Option(min=1, help="Cold starts to measure.")] = 3,
    runner: Annotated[str, Option(help="What starts an image; the first that works here.")] = "",
    prompt_tokens: Annotated[
        int, Option(min=0, help="Length of the first prompt; 0 is a short question.")
    ] = 0,
    at_once: Annotated[
        bool, Option("--at-once", help="Ask while it starts, until the question is taken.")
    ] = False,
    timeout_seconds: Annotated[
        float, Option(callback=_over_zero, help="Until a start has failed.")
    ] = 300.0,
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """Start it cold, ask it, stop it, and say where the time went.

    A MODEL (a .zse file, a checkpoint, "tiny" or an address) is started as a fresh server
    process. An image (oci:DIR[:TAG], a tar file of a layout, or a reference, which is pulled) is
    unpacked once and started in a root of its own; pulling and unpacking are not measured.

    The time to a long prompt's token is measured by --prompt-tokens, as a request
    that woke the machine sees it with --at-once.

    With --budget-ms the exit code is 13 when the first streamed token comes later: for CI.
    """
    from dataclasses import replace

    from zse.deploy.measure.asking import dialogue_of
    from zse.deploy.measure.report import make_report, measure_limits
    from zse.deploy.measure.start import measure_start

    dialogue = dialogue_of(prompt_tokens=prompt_tokens, is_at_once=at_once)
    with ExitStack() as stack:
        target = _subject(subject, given["device"] or "", runner, stack)
        target = replace(target, dialogue=dialogue)
        starts = []
        for number in range(1, repeat + 1):
            start = measure_start(target, timeout_seconds=timeout_seconds)
            say(f"start {number} of {repeat}: first token after {start.first_token_ms:.0f} ms")
            starts.append(start)
    limits_ms = measure_limits() if target.how == "process" else {}
    report = make_report(subject, target.how, starts, limits_ms=limits_ms, budget_ms=budget_ms)
    typer.echo(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
    report.check_budget()


def _subject(name: str, device: str, runner: str, stack: ExitStack) -> Subject:
    from zse.cli.transfer_display import shown_progress
    from zse.deploy.measure.subjects import RUNNER_ORDER, is_image, model_subject, opened_image
    from zse.errors import UsageError
    from zse.models.resolve import OciFile, RemoteFile, resolve_model
    from zse.quantize.locate import locate_model
    from zse.settings import load_settings

    if runner and runner not in RUNNER_ORDER:
        known = ", ".join(RUNNER_ORDER)
        raise UsageError(f"there is no runner {runner!r}", hint=f"Choose one of {known}.")
    settings = load_settings()
    if is_image(name):
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="zse-cold-start-"))
        return stack.enter_context(
            opened_image(
                name,
                Path(folder),
                device=device,
                runner=runner,
                auth_file=settings.registry_auth_file,
                say=say,
            )
        )
    if runner:
        raise UsageError("--runner is for images", hint="A model is started as a plain process.")
    if not isinstance(resolve_model(name), RemoteFile | OciFile):
        # Converted before, or the first start would be the conversion.
        with shown_progress() as progress:
            name = str(locate_model(name, settings, progress=progress))
    return model_subject(name, device=device)
