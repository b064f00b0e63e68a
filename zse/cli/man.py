"""``zse man``: the manual as pages of section 1, made of what ``--help`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from zse.cli.app import App

app = App()


@app.command("man")
def command(
    context: typer.Context,
    name: Annotated[
        str, Argument(metavar="[COMMAND]", help="Print one page.  [the page of zse itself]")
    ] = "",
    out: Annotated[
        Path | None, Option("-o", "--out", metavar="DIR", help="Write all pages into a folder.")
    ] = None,
) -> None:
    """Print a manual page, for `zse man serve | man -l -`, or write all of them into a folder."""
    from zse.cli.man_pages import all_pages, page_of, write_pages

    root = context.find_root()
    if out is not None:
        for path in write_pages(all_pages(root), out):
            typer.echo(path)
        return
    typer.echo(page_of(root, name), nl=False)
