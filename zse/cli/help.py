"""``zse help``: the same as ``--help``, for those who type it first."""

from __future__ import annotations

import click


@click.command("help", short_help="Show the help of a command.")
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show what zse can do, or how one of its commands is used."""
    place = context.find_root()
    for name in names:
        if not isinstance(place.command, click.Group):
            raise click.UsageError(f"`{place.command_path}` has no commands", ctx=place)
        _, found, _ = place.command.resolve_command(place, [name])
        if found is not None:
            place = click.Context(found, info_name=name, parent=place)
    click.echo(place.get_help())
