"""``zse help``: the same as ``--help``, for those who type it first."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument
from typer.core import TyperGroup

from zse.cli.app import App
from zse.errors import UsageError

app = App()


@app.command("help")
def command(
    context: typer.Context,
    names: Annotated[list[str] | None, Argument(metavar="COMMAND", help="All without.")] = None,
) -> None:
    """Show what zse can do, or how one of its commands is used."""
    place = context.find_root()
    for name in names or ():
        if not isinstance(place.command, TyperGroup):
            path = place.command_path
            raise UsageError(f"`{path}` has no commands", hint=f"See `{path} --help`.")
        _, found, _ = place.command.resolve_command(place, [name])
        if found is not None:
            place = typer.Context(found, info_name=name, parent=place)
    typer.echo(place.get_help())
