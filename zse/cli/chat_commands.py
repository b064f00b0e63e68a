"""The slash commands of a conversation in the terminal: one function each, found in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zse.cli.app import say
from zse.errors import UsageError
from zse.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.cli.chat_session import Session

LEAVE = frozenset({"/exit", "/quit", "/bye", "exit", "quit"})
_MOST_FILE_BYTES = 1 << 20
_SETTINGS: dict[str, tuple[Callable[[str], float], float, float]] = {
    "temperature": (float, 0.0, 2.0),
    "top_p": (float, 0.0, 1.0),
    "max_tokens": (int, 1, 1 << 20),
    "seed": (int, 0, (1 << 63) - 1),
}
"""What ``/set`` takes: how it is read, and its bounds."""


def run_command(session: Session, text: str) -> None:
    """Carry out a line that begins with a slash.

    Raises:
        ZSEError: It cannot be done, or there is no such command.
    """
    name, _, argument = text.partition(" ")
    found = _COMMANDS.get(name)
    if found is None or (found[1] and not argument.strip() and "[" not in found[1]):
        raise UsageError(f"{text!r} is no command.", hint="/help lists them.")
    found[0](session, argument.strip())


def _help(_: Session, __: str) -> None:
    rows = [(f"{name} {words}".rstrip(), text) for name, (_f, words, text) in _COMMANDS.items()]
    rows += [
        ("/exit", "leave; also /quit, /bye, exit, quit, Ctrl-D"),
        ("Ctrl-C", "stop an answer"),
        ('"""', "begin a message of several lines, and end it"),
    ]
    width = max(len(left) for left, _text in rows)
    typer.echo("\n".join(f"{left:<{width}}  {text}" for left, text in rows))


def _reset(session: Session, _: str) -> None:
    session.history.clear()
    say("The conversation is forgotten.")


def _system(session: Session, text: str) -> None:
    session.system = text
    session.history.clear()
    say("The system message is set." if text else "No system message.")


def _retry(session: Session, _: str) -> None:
    if session.history and session.history[-1]["role"] == "assistant":
        session.history.pop()
    if not session.history:
        raise UsageError("nothing was asked yet")
    session.ask(session.history.pop()["content"])


def _file(session: Session, name: str) -> None:
    """Put a text file in front of the next message."""
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise UsageError(
                f"{path} has more than {_MOST_FILE_BYTES >> 20} MiB",
                hint="A conversation holds some thousand words: give it the part that matters.",
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    session.attach(f"{path.name}:\n```\n{text.rstrip()}\n```")
    say(f"{path} goes with your next message.")


def _set(session: Session, argument: str) -> None:
    name, _, word = argument.partition(" ")
    if not name:
        typer.echo(json.dumps(session.values))
        return
    if name not in _SETTINGS:
        raise UsageError(
            f"{name!r} cannot be set", hint=f"What can be: {', '.join(sorted(_SETTINGS))}."
        )
    if not word:
        session.values.pop(name, None)
        say(f"{name} is what the model says.")
        return
    session.values[name] = _value_of(name, word.strip())
    say(f"{name} is {session.values[name]}.")


def _value_of(name: str, word: str) -> Any:
    kind, least, most = _SETTINGS[name]
    try:
        value = kind(word)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UsageError(f"{word!r} is no {name}: a number from {least:g} to {most:g} is")
    return value


def _save(session: Session, name: str) -> None:
    say(f"Saved to {session.saved.save(name, session.messages)}.")


def _load(session: Session, name: str) -> None:
    messages = session.saved.load(name)
    has_system = bool(messages) and messages[0]["role"] == "system"
    session.system = messages[0]["content"] if has_system else ""
    session.history[:] = messages[1:] if has_system else messages
    for message in session.history[-2:]:
        said = printable(message["content"], keep="\n")
        typer.echo(f"{message['role']}: {said}")
    say(f"{len(session.history)} messages; go on.")


def _saved(session: Session, _: str) -> None:
    names = session.saved.names()
    typer.echo("\n".join(names) if names else "none; /save NAME keeps this one")


_COMMANDS: dict[str, tuple[Callable[[Session, str], None], str, str]] = {
    "/help": (_help, "", "show this"),
    "/reset": (_reset, "", "forget the conversation; the system message stays"),
    "/system": (
        _system,
        "[TEXT]",
        "set the system message, or remove it, and begin anew",
    ),
    "/retry": (_retry, "", "answer the last message anew"),
    "/file": (_file, "PATH", "put a text file in front of the next message"),
    "/set": (_set, "[NAME [VALUE]]", f"show or set {', '.join(_SETTINGS)}"),
    "/save": (_save, "NAME", "keep the conversation under a name, or as the file PATH.json"),
    "/load": (_load, "NAME", "go on with a conversation that was kept"),
    "/saved": (_saved, "", "list the conversations that are kept"),
}
