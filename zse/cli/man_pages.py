"""Manual pages in roff (man(7)) of a command line: synopsis, description, options, exit codes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from zse import __version__
from zse.cli.app import HELP_NAMES, examples_of
from zse.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from typer._click import Context, Parameter

_EXIT_CODES = {
    0: "all went well",
    1: "something that was looked for is wrong",
    2: "the words of the command are wrong",
    3: "what was named is not there, or something is not installed",
    130: "stopped by Ctrl-C",
}


def all_pages(root: Context) -> dict[str, str]:
    """Return every page by the name of its file, such as ``zse-serve.1``."""
    return {f"{_title(context)}.1": _page(context) for context in _contexts(root)}


def page_of(root: Context, name: str) -> str:
    """Return the page of a command, of the whole program for an empty name.

    Raises:
        UsageError: There is no such command.
    """
    wanted = "-".join([root.info_name or "zse", *name.split()])
    for context in _contexts(root):
        if _title(context) == wanted:
            return _page(context)
    raise UsageError(f"no page of {name!r}", hint="zse --help lists the commands.")


def write_pages(pages: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Write pages into a folder that is made where it is missing; yield their paths.

    Raises:
        StoreError: A page cannot be written.
    """
    for name, text in pages.items():
        path = folder / name
        temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None
        yield path


def _contexts(place: Context) -> Iterator[Context]:
    yield place
    if not isinstance(place.command, TyperGroup):
        return
    for name in place.command.list_commands(place):
        command = place.command.get_command(place, name)
        if command is not None and not command.hidden:
            yield from _contexts(
                typer.Context(command, parent=place, info_name=name, help_option_names=HELP_NAMES)
            )


def _title(context: Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: Context) -> str:
    command, title = context.command, _title(context)
    paragraphs = (command.help or "").split("\n\n")
    lines = [
        f'.TH "{_text(title.upper())}" 1 "" "zse {__version__}" "Commands of zse"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(_joined(paragraphs[0]))}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(" ".join(command.collect_usage_pieces(context))),
    ]
    if len(paragraphs) > 1:
        lines.append(".SH DESCRIPTION")
        for paragraph in paragraphs[1:]:
            lines += [".PP", _text(_joined(paragraph))]
    if examples := examples_of(context):
        lines += [".SH EXAMPLES", ".nf", *map(_text, examples), ".fi"]
    lines += _options(context)
    lines += _commands(context)
    lines.append(".SH EXIT STATUS")
    for code, words in _EXIT_CODES.items():
        lines += [".TP", f".B {code}", _text(words)]
    return "\n".join(lines) + "\n"


def _options(context: Context) -> Iterator[str]:
    records = [_record(each, context) for each in context.command.get_params(context)]
    shown = [record for record in records if record is not None]
    if shown:
        yield ".SH OPTIONS"
    for names, text in shown:
        yield from (".TP", f".B {_text(names)}", _text(_joined(text)) or "\\&")


def _record(parameter: Parameter, context: Context) -> tuple[str, str] | None:
    record: Any = parameter.get_help_record(context)
    return record if record is not None else None


def _commands(context: Context) -> Iterable[str]:
    if not isinstance(context.command, TyperGroup):
        return []
    title, lines = _title(context), [".SH COMMANDS"]
    for name in context.command.list_commands(context):
        found = context.command.get_command(context, name)
        if found is not None and not found.hidden:
            short = _joined((found.help or "").split("\n\n")[0])
            lines += [".TP", f".BR {_text(title)}\\-{_text(name)} (1)", _text(short) or "\\&"]
    return lines


def _joined(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _text(words: str) -> str:
    """Return words as roff prints them: no escape, no request, dashes that can be copied."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
