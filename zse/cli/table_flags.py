"""Flags that are rows of the table of options: names, types, choices and help stand there."""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from zse.option import options_of
from zse.server_options import ServeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.option import Option

Result = TypeVar("Result")
_MOST_UNGROUPED = 20
"""Flags that one list in the help may have."""


def with_flags_of(
    keys: Iterable[str], of: type = ServeOptions
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return what gives a command the flags of some options of a record, where ``given`` stands.

    The command takes them as that one keyword: by key, None where a flag was not given and the
    environment may say it. That is what ``zse.options.with_flags`` and ``with_values`` read.
    """
    rows = {key: options_of(of)[key] for key in keys}
    titles = _titles(of) if len(rows) > _MOST_UNGROUPED else {}

    def add(command: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(command)
        def run(**values: Any) -> Result:
            given = {key: values.pop(key) for key in rows}
            return command(**values, given=given)

        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, one in signature(command).parameters.items()
        ]
        place = [one.name for one in own].index("given")
        own[place : place + 1] = [_flag(key, row, titles.get(key)) for key, row in rows.items()]
        run.__signature__ = signature(command).replace(parameters=own)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in own}
        return run

    return add


def _titles(of: type) -> dict[str, str]:
    """Return what the help calls the group of each option that is in a record of its own."""
    found: dict[str, str] = {}
    for entry in fields(of):
        if hasattr(entry.default, "__record__"):
            inner = type(entry.default)
            words = (inner.__doc__ or "").partition("\n")[0].rstrip(".")
            found |= {**dict.fromkeys(options_of(inner), words), **_titles(inner)}
    return found


def _flag(key: str, row: Option, group: str | None) -> Parameter:
    names = row.flags
    if row.kind is bool and (row.variables or row.default):
        names = (f"{names[0]}/{names[0].replace('--', '--no-', 1)}", *names[1:])
    kind: Any = Literal[row.choices] if row.choices else row.kind
    if row.kind is tuple:
        kind = list[str]
    default = row.default
    if row.variables:
        kind, default = kind | None, None
    text = row.help_text if row.variables else row.meaning
    option = typer.Option(*names, help=text, rich_help_panel=group)
    return Parameter(
        key, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
