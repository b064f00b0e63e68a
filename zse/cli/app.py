"""What every command stands on: a Typer app in zse's style, and how its words become values.

Typer checks values with pydantic, whose import alone takes 0.15 s of CPU. Here the few types that
zse's commands take are read by this file, in sentences that fit ``error:``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

import typer
from typer import _completion_classes
from typer._coercion import RuntimeParam
from typer._display import describe_number_range
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer._click import Command, Context, HelpFormatter
    from typer.core import _TyperParameter


# No help of zse has rich's marks, and importing rich would double the time of each Tab.
_completion_classes._sanitize_help_text = lambda text: text
Function = TypeVar("Function", bound="Callable[..., Any]")
HELP_NAMES = ["-h", "--help"]


def say(words: str) -> None:
    """Tell a person something; stdout is for what was asked for."""
    typer.echo(words, err=True)


class GroupedCommand(TyperCommand):
    """A command whose help has examples, and its options in the groups that they name."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write examples, arguments, then options: those without a group first."""
        if lines := examples_of(ctx):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                group = "Arguments"
                if isinstance(parameter, TyperOption):
                    group = parameter.rich_help_panel or "Options"
                groups.setdefault(group, []).append(row)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def examples_of(ctx: Context) -> list[str]:
    """Return the examples that help shows of a command."""
    from zse.cli.examples import example_lines

    return example_lines(ctx.command_path.partition(" ")[2])


class App(typer.Typer):
    """A command, or a group of them: plain help, no suggestions but those of ``error_output``."""

    def __init__(self, **settings: Any) -> None:
        settings = {"add_completion": False, "suggest_commands": False, **settings}
        super().__init__(rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Add a command, as ``typer.Typer.command`` does."""
        return super().command(name, **{"cls": GroupedCommand, **settings})


def command_of(app: typer.Typer) -> Command:
    """Return what parses an app's words and runs it."""
    command = get_command(app)
    for each in (command, *(command.commands.values() if isinstance(command, TyperGroup) else ())):
        for parameter in each.get_params(typer.Context(each, help_option_names=HELP_NAMES)):
            if isinstance(parameter, TyperArgument | TyperOption):
                described = parameter.type_descriptor
                parameter._runtime_param = _Words(described.parameter_info, described.annotation)
    return command


class _Words(RuntimeParam):
    """Reads text, numbers, paths and choices: one, or a list of them."""

    def _coerce_value(self, value: Any, param: _TyperParameter, ctx: Context) -> Any:
        assert isinstance(param, TyperArgument | TyperOption)
        try:
            if isinstance(value, list | tuple):
                (kind,) = get_args(self.annotation)
                return [_read(word, kind, param) for word in value]
            return _read(value, self.annotation, param)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", ctx, param) from None


def _read(word: Any, kind: Any, parameter: TyperArgument | TyperOption) -> Any:
    """Return the value that a word stands for; a default is one already.

    Raises:
        ValueError: It stands for none.
    """
    choices = parameter.type_descriptor.choices
    if choices is not None:
        values = {str(choice).casefold(): choice for choice in choices}
        if str(word).casefold() not in values:
            raise ValueError(f"{word!r} is not one of {', '.join(map(repr, map(str, choices)))}")
        return values[str(word).casefold()]
    try:
        value = kind(word)
    except ValueError:
        name = "integer" if kind is int else kind.__name__
        raise ValueError(f"{word!r} is not a valid {name}") from None
    least, most = parameter.min, parameter.max
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError(f"{value} is not in the range {describe_number_range(least, most)}")
    return value
