"""Flags that are rows of the table of options: names, types, choices and help stand there."""

from __future__ import annotations

from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from zse.options import ServeOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.options import Option

Result = TypeVar("Result")


def with_flags_of(keys: Iterable[str]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return what gives a command the flags of some options of ``ServeOptions``.

    The command takes them as one keyword, ``given``: by key, None where a flag was not given. That
    is what ``zse.options.with_flags`` reads.
    """
    rows = {key: options_of(ServeOptions)[key] for key in keys}

    def add(command: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(command)
        def run(**values: Any) -> Result:
            given = {key: values.pop(key) for key in rows}
            return command(**values, given=given)

        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, one in signature(command).parameters.items()
            if name != "given"
        ]
        flags = [
            Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(row))
            for key, row in rows.items()
        ]
        run.__signature__ = signature(command).replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*own, *flags)}
        return run

    return add


def _annotation(row: Option) -> Any:
    names = row.flags
    if row.kind is bool:
        names = (f"{names[0]}/{names[0].replace('--', '--no-', 1)}", *names[1:])
    kind: Any = Literal[row.choices] if row.choices else row.kind
    return Annotated[kind | None, typer.Option(*names, help=row.help_text)]
