"""``zse config``: every option with its value, and where that was set: flag, variable or file."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json
from zse.cli.table_flags import with_flags_of
from zse.errors import UsageError
from zse.option import options_of, own_options, with_flags
from zse.server_options import ServeOptions
from zse.settings import load_settings, settings_files, settings_origins

app = App(help="Show every option, its value and where it was set.")
_FLAGS = [key for key, row in options_of(ServeOptions).items() if row.by_hand]
_HIDDEN = "(hidden)"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
"""Who an address says is asking: a name and a password."""


@app.command("show")
@with_flags_of(_FLAGS)
def show(
    *,
    key: Annotated[str | None, Argument(metavar="KEY", help="One option; all without.")] = None,
    given: dict[str, Any],
    is_changed: Annotated[bool, Option("--changed", help="Only what is no default.")] = False,
    as_json: Json = False,
) -> None:
    """Show the options that a command with these flags would use here.

    Flags override variables, and variables override files.
    """
    origins = settings_origins()
    origins |= {name: "flag" for name, value in given.items() if value not in (None, [], ())}
    values = _values_of(with_flags(load_settings(), given))
    if key is not None and key not in values:
        raise UsageError(f"there is no option {key!r}", hint="`zse config show` lists them.")
    wanted = [name for name in values if key in (None, name)]
    wanted = [name for name in wanted if name in origins or not is_changed]
    if as_json:
        rows = {n: {"value": values[n], "origin": origins.get(n, "default")} for n in wanted}
        typer.echo(json.dumps(rows))
        return
    width = max((len(name) for name in wanted), default=0)
    for name in wanted:
        origin = origins.get(name, "default")
        typer.echo(f"{name:<{width}}  {_as_text(values[name])}  ({origin})")


@app.command("path")
def path(as_json: Json = False) -> None:
    """Show the settings files that are read here, the one that wins last."""
    files = [str(file.absolute()) for file in settings_files()]
    if as_json:
        typer.echo(json.dumps(files))
        return
    for file in files:
        typer.echo(file)


def _values_of(one: Any) -> dict[str, Any]:
    """Return what may be shown of every option in a record and in the records in it, by key."""
    rows, found = own_options(type(one)), {}
    for name in type(one).__dataclass_fields__:
        value = getattr(one, name)
        if name in rows:
            found[rows[name].key] = _shown(value, is_secret=rows[name].is_secret)
        elif hasattr(value, "__record__"):
            found |= _values_of(value)
    return found


def _shown(value: Any, *, is_secret: bool) -> Any:
    if is_secret:
        return _HIDDEN if value else ""
    if isinstance(value, tuple):
        return [_shown(part, is_secret=False) for part in value]
    if isinstance(value, int | float | bool | None):
        return value
    return _PASSWORD.sub(f"{_HIDDEN}@", str(value))


def _as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | str | list) else str(value)
