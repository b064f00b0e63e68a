"""A conversation in the terminal: history, commands, and answers as they come."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from zse.cli.app import say
from zse.cli.error_output import show_error
from zse.errors import StoreError, ZSEError

if TYPE_CHECKING:
    from zse.cli.chat_backends import LlamaCppBackend, LocalBackend, Message, ServerBackend

HELP = """\
/help           show this
/reset          forget the conversation; the system message stays
/system [TEXT]  set the system message, or remove it; the conversation is forgotten
/save FILE      write the conversation as JSON
/exit           leave; also /quit, /bye, exit, quit, Ctrl-D
Ctrl-C          stop an answer"""

PROMPT = "> "
_LEAVE = frozenset({"/exit", "/quit", "/bye", "exit", "quit"})


class Session:
    """One conversation.

    Args:
        system: System message; empty means none.
        is_terminal: Whether a person reads: prompts are shown, and an error does not end it.
    """

    def __init__(
        self,
        backend: LlamaCppBackend | LocalBackend | ServerBackend,
        *,
        system: str = "",
        is_terminal: bool,
    ) -> None:
        self._backend = backend
        self._system = system
        self._is_terminal = is_terminal
        self._history: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        first = [{"role": "system", "content": self._system}] if self._system else []
        return [*first, *self._history]

    def run(self, source: TextIO) -> None:
        """Read messages until the end of input or ``/exit``."""
        if self._is_terminal:
            say("Type a message, or /help.")
        while (line := self._read(source)) is not None:
            text = line.strip()
            if text.lower() in _LEAVE:
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._ask(text)

    def _read(self, source: TextIO) -> str | None:
        """Return the next line, or None at the end."""
        if not self._is_terminal:
            return source.readline() or None
        try:
            return _ask_terminal()
        except EOFError:
            typer.echo(err=True)
            return None
        except KeyboardInterrupt:
            say("\nType /exit or press Ctrl-D to leave.")
            return ""

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        argument = argument.strip()
        if name == "/help":
            typer.echo(HELP)
        elif name == "/reset":
            self._history.clear()
            say("The conversation is forgotten.")
        elif name == "/system":
            self._system = argument
            self._history.clear()
            say("The system message is set." if argument else "No system message.")
        elif name == "/save" and argument:
            self._save(Path(argument).expanduser())
        else:
            say(f"{text!r} is no command. /help lists them.")

    def _ask(self, text: str) -> None:
        self._history.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            self._print_answer(pieces)
        except KeyboardInterrupt:
            typer.echo(" [stopped]")
        except ZSEError as error:
            self._history.pop()  # as if it had not been asked: the next one is not spoiled by it
            if not self._is_terminal:
                raise
            error.hint = error.hint or "/reset begins anew."
            show_error(error)
            return
        self._history.append({"role": "assistant", "content": "".join(pieces)})

    def _print_answer(self, pieces: list[str]) -> None:
        """Print an answer as it comes, collecting it; a stop keeps what was said."""
        # Closing cancels the work; a generator that is left alone would go on.
        with closing(self._backend.answer(self.messages)) as answer:
            for piece in answer:
                pieces.append(piece)
                typer.echo(piece, nl=False)
            typer.echo()

    def _save(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        text = json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            show_error(StoreError(f"cannot write {path}: {error.strerror}", hint="Try another."))
            return
        say(f"Saved to {path}.")


def _ask_terminal() -> str:
    # Importing readline gives input() editing and history; some Pythons are built without it.
    with suppress(ImportError):
        import readline  # noqa: F401
    return input(PROMPT)
