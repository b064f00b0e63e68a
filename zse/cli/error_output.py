"""How an error is shown on stderr: in words, or with ``--json`` as an object for programs.

Imported when there is an error. What the user typed wrong is said in the same two lines as what
went wrong later.
"""

from __future__ import annotations

import json
import re
import traceback
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING

import typer
from typer._click import exceptions as typed
from typer.core import TyperArgument, TyperGroup

from zse.cli import others
from zse.cli.examples import EXAMPLES
from zse.errors import BadSettingError, UsageError, ZSEError
from zse.failures import deliberate
from zse.printable import printable
from zse.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer._click import Context


def end_with(failure: Exception, words: Sequence[str]) -> int:
    """Show a failure of the command that ``words`` are; return the exit code."""
    settings = _settings()
    if settings.debug and not isinstance(failure, typed.ClickException):
        traceback.print_exception(failure)
    if isinstance(failure, typed.ClickException):
        error = _typed_wrong(failure, words)
    else:
        error = deliberate(failure, settings.cache_dir)
    if "--json" in words:
        typer.echo(json.dumps({"error": as_json(error)}), err=True)
    else:
        show_error(error)
    return error.exit_code


def show_error(error: ZSEError) -> None:
    """Write an error in two lines, with colour on a terminal that may have it.

    It may quote a file, a registry or a label: nothing of that commands the terminal.
    """
    color = False if _settings().no_color else None  # None: typer looks at the stream
    lines = [typer.style("error:", fg="red", bold=True) + f" {_shown(error.message)}"]
    if error.hint:
        lines.append(typer.style("hint:", fg="cyan", bold=True) + f" {_shown(error.hint)}")
    typer.echo("\n".join(lines), err=True, color=color)


def as_json(error: ZSEError) -> dict[str, str | int]:
    """Return what a program reads of an error; ``code`` is its rule or class, in lower case."""
    name = type(error).__name__.removesuffix("Error")
    code = error.rule or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() or "error"
    return {
        "code": code,
        "exit_code": error.exit_code,
        "message": error.message,
        "hint": error.hint,
    }


def _shown(text: str) -> str:
    return printable(text, keep="\n\t")


def _settings() -> Settings:
    """Return the environment; the defaults when that is what is wrong."""
    try:
        return load_settings()
    except BadSettingError:
        return Settings()


def _typed_wrong(failure: typed.ClickException, words: Sequence[str]) -> ZSEError:
    context = failure.ctx if isinstance(failure, typed.UsageError) else None
    if context is None:
        return UsageError(_in_words(failure.format_message()))
    if isinstance(failure, typed.NoSuchOption):
        hint = _option_hint(failure, context, words)
        return UsageError(f"no such option {failure.option_name!r}", hint=hint)
    name = re.match(r"No such command '([^']+)'", failure.message)
    if name and isinstance(context.command, TyperGroup):
        hint = _command_hint(name[1], context, context.command)
        return UsageError(_in_words(name[0]), hint=hint)
    is_missing = isinstance(failure, typed.MissingParameter) or "Missing command" in failure.message
    return UsageError(
        _in_words(failure.format_message()), hint=_help_hint(context, with_more=is_missing)
    )


def _in_words(message: str) -> str:
    """Return a sentence of the parser's as the middle of one line."""
    message = re.sub(r"\. Choose from:\s*", ": one of ", message)
    return re.sub(r"\s+", " ", message[:1].lower() + message[1:]).rstrip(".")


def _help_hint(context: Context, *, with_more: bool) -> str:
    """Return where to read on; where something was left out, with what would do."""
    command, path = context.command, context.command_path
    lines: Sequence[str] = ()
    if with_more and isinstance(command, TyperGroup):
        lines = [f"Name one: {', '.join(command.list_commands(context))}."]
    elif with_more and (examples := EXAMPLES.get(path.partition(" ")[2])):
        lines = [f"For example `{examples[0][0]}`."]
    return " ".join([*lines, f"See `{path} --help`."])


def _option_hint(failure: typed.NoSuchOption, context: Context, words: Sequence[str]) -> str:
    name = failure.option_name
    for one in context.command.params:
        if isinstance(one, TyperArgument) and name == f"--{one.name}":
            called = one.display_name_raw
            value = _value_after(name, words) or called
            return f"{called} is an argument, not an option: {context.command_path} {value}"
    if name in others.OPTIONS:
        return others.OPTIONS[name]
    close = _nearest(name, failure.possibilities or [])
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}See `{context.command_path} --help`."


_NEAR = 0.1
"""How much less alike two words may be than the most alike two, to be meant as well."""


def _value_after(option: str, words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            return next((value for value in words[index + 1 :][:1] if value[:1] != "-"), "")
    return ""


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return what is as near to a word as the nearest is, or nearly."""
    close = get_close_matches(name, known, n=2)
    ratios = [SequenceMatcher(None, each, name).ratio() for each in close]
    return [each for each, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - _NEAR]


def _command_hint(name: str, context: Context, group: TyperGroup) -> str:
    close = _nearest(name, group.list_commands(context))
    if context.parent is None and name in others.COMMANDS:
        close = [others.COMMANDS[name]]
    meant = " or ".join(f"`{context.command_path} {each}`" for each in close)
    return f"Did you mean {meant}?" if close else f"See `{context.command_path} --help`."
