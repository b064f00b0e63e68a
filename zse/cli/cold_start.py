"""``zse cold-start``: how long an endpoint that was asleep takes to answer."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zse.cli.model_argument import MODEL

if TYPE_CHECKING:
    from zse.deploy.measure.start import Subject


@click.command("cold-start")
@click.argument("subject", default="tiny", metavar="IMAGE|oci:DIR|MODEL", type=MODEL)
@click.option(
    "--budget-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Fail when the median of the first token is later.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=3, show_default=True, help="Cold starts to measure."
)
@click.option("--device", default="", help="auto, cpu or cuda[:N].  [the server's default]")
@click.option("--runner", default="", help="What starts an image; the first that works here.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Until a start has failed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    subject: str,
    budget_ms: float | None,
    repeat: int,
    device: str,
    runner: str,
    timeout_seconds: float,
    *,
    as_json: bool,
) -> None:
    """Start it cold, ask it, stop it, and say where the time went.

    A MODEL (a .zse file, a checkpoint, "tiny" or an address) is started as a fresh server
    process. An image (oci:DIR[:TAG], a tar file of a layout, or a reference, which is pulled) is
    unpacked once and started in a root of its own; pulling and unpacking are not measured.

    With --budget-ms the exit code is 13 when the first streamed token comes later: for CI.
    """
    from zse.deploy.measure.report import make_report, measure_limits
    from zse.deploy.measure.start import measure_start

    with ExitStack() as stack:
        target = _subject(subject, device, runner, stack)
        starts = []
        for number in range(1, repeat + 1):
            start = measure_start(target, timeout_seconds=timeout_seconds)
            _say(f"start {number} of {repeat}: first token after {start.first_token_ms:.0f} ms")
            starts.append(start)
    limits_ms = measure_limits() if target.how == "process" else {}
    report = make_report(subject, target.how, starts, limits_ms=limits_ms, budget_ms=budget_ms)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
    report.check_budget()


def _subject(name: str, device: str, runner: str, stack: ExitStack) -> Subject:
    from zse.cli.transfer_display import opening_progress
    from zse.deploy.measure.subjects import (
        RUNNER_ORDER,
        is_image,
        model_subject,
        opened_image,
    )
    from zse.engine.opening import locate_model
    from zse.errors import UsageError
    from zse.models.resolve import RemoteFile, resolve_model
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
                auth_file=Path(settings.registry_auth_file),
                say=_say,
            )
        )
    if runner:
        raise UsageError("--runner is for images", hint="A model is started as a plain process.")
    if not isinstance(resolve_model(name), RemoteFile):
        # Converted before, or the first start would be the conversion.
        with opening_progress() as progress:
            name = str(locate_model(name, progress=progress))
    return model_subject(name, device=device)


def _say(words: str) -> None:
    click.echo(words, err=True)
