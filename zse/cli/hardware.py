"""`zse hardware`: what this machine has, which models fit, what is missing to serve on its GPU."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from typer import Option

from zse.cli.app import App
from zse.cli.parameters import Json

app = App()


@app.command("hardware")
def command(
    as_json: Json = False,
    kernels: Annotated[
        str,
        Option(
            metavar="PATH",
            help="Kernel pack, or folder of packs, to check against the GPUs (default: the one "
            "that serving would use).",
        ),
    ] = "",
) -> None:
    """Show GPUs, memory, which models fit, and what a kernel pack is missing."""
    from zse.cli.hardware_report import build_report, print_report
    from zse.settings import load_settings

    report = build_report(load_settings(), kernels=kernels)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_report(report)
