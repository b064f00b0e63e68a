"""A conversation in the terminal: history, commands, and answers as they come."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TextIO

import typer

from zse.cli.app import say
from zse.cli.chat_commands import LEAVE, run_command
from zse.cli.error_output import show_error
from zse.errors import ZSEError

if TYPE_CHECKING:
    from zse.cli.chat_backends import LlamaCppBackend, LocalBackend, Message, ServerBackend
    from zse.cli.saved_chats import SavedChats

PROMPT = "> "
_MORE = ". "
_LINES = '"""'


class Session:
    """One conversation.

    Args:
        saved: Where conversations are kept.
        values: What was said of how answers are generated, by the names that requests have.
        system: System message; empty means none.
        is_terminal: Whether a person reads: prompts are shown, and an error does not end it.
    """

    def __init__(
        self,
        backend: LlamaCppBackend | LocalBackend | ServerBackend,
        *,
        saved: SavedChats,
        values: dict[str, Any],
        system: str = "",
        is_terminal: bool,
    ) -> None:
        self._backend = backend
        self._is_terminal = is_terminal
        self._attached: list[str] = []
        self.saved = saved
        self.values = values
        self.system = system
        self.history: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.history]

    def run(self, source: TextIO) -> None:
        """Read messages until the end of input or ``/exit``."""
        if self._is_terminal:
            say("Type a message, or /help.")
        while (line := self._read(source)) is not None:
            text = line.strip()
            if text.lower() in LEAVE:
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self.ask(text)

    def attach(self, text: str) -> None:
        """Put a text in front of the next message."""
        self._attached.append(text)

    def ask(self, text: str) -> None:
        """Send a message and print its answer as it comes.

        Raises:
            ZSEError: There was no answer, and no person is told of it instead.
        """
        text = "\n\n".join([*self._attached, text])
        self._attached.clear()
        self.history.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            self._print_answer(pieces)
        except KeyboardInterrupt:
            typer.echo(" [stopped]")
        except ZSEError as error:
            self.history.pop()  # as if it had not been asked: the next one is not spoiled by it
            if not self._is_terminal:
                raise
            if pieces:
                typer.echo()  # the answer's last line is whole before the error begins
            error.hint = error.hint or "/reset begins anew."
            show_error(error)
            return
        self.history.append({"role": "assistant", "content": "".join(pieces)})

    def _read(self, source: TextIO) -> str | None:
        """Return the next line, or None at the end."""
        if not self._is_terminal:
            return source.readline() or None
        try:
            return _ask_message()
        except EOFError:
            typer.echo(err=True)
            return None
        except KeyboardInterrupt:
            say("\nType /exit or press Ctrl-D to leave.")
            return ""

    def _command(self, text: str) -> None:
        try:
            run_command(self, text)
        except ZSEError as error:
            show_error(error)

    def _print_answer(self, pieces: list[str]) -> None:
        """Print an answer as it comes, collecting it; a stop keeps what was said."""
        # Closing cancels the work; a generator that is left alone would go on.
        with closing(self._backend.answer(self.messages, self.values)) as answer:
            for piece in answer:
                pieces.append(piece)
                typer.echo(piece, nl=False)
            typer.echo()


def _ask_message() -> str:
    """Read a message: a line, or all lines between two rows of three quotes."""
    first = _ask_terminal(PROMPT)
    if not first.startswith(_LINES):
        return first
    lines = [first.removeprefix(_LINES)]
    while not lines[-1].endswith(_LINES):
        lines.append(_ask_terminal(_MORE))
    lines[-1] = lines[-1].removesuffix(_LINES)
    return "\n".join(lines)


def _ask_terminal(prompt: str) -> str:
    # Importing readline gives input() editing and history; some Pythons are built without it.
    with suppress(ImportError):
        import readline  # noqa: F401
    return input(prompt)
