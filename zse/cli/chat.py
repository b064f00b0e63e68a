"""``zse chat``: talk to a model in this process, or to a server."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import OptionalModel
from zse.cli.table_flags import with_flags_of
from zse.option import options_of, with_flags
from zse.options import LoadOptions
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.cli.chat_backends import LlamaCppBackend, LocalBackend, ServerBackend

_FLAGS = [key for key, row in options_of(LoadOptions).items() if row.by_hand]
_FOLDER = "terminal-chats"

app = App()


@app.command("chat")
@with_flags_of(_FLAGS)
def command(
    *,
    model: OptionalModel = None,
    url: Annotated[
        str | None, Option(help="Talk to a server, such as http://127.0.0.1:8000, instead.")
    ] = None,
    api_key: Annotated[str, Option(show_default=False, help="Key for --url.")] = "unused",
    system: Annotated[str, Option(help="System message to begin with.")] = "",
    resume: Annotated[
        str, Option("--resume", metavar="NAME", help="Go on with a conversation that /save kept.")
    ] = "",
    max_tokens: Annotated[int | None, Option(help="Longest answer in tokens.")] = None,
    temperature: Annotated[float | None, Option(help="0 is greedy.  [what the model says]")] = None,
    seed: Annotated[int | None, Option(help="Makes answers repeat.")] = None,
    given: dict[str, Any],
) -> None:
    """Chat with MODEL; without one, with the model that ZSE_MODEL names.

    Without a terminal every line of standard input is one message and only answers are printed.
    """
    from zse.cli.chat_backends import ServerBackend

    values = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    said = {name: value for name, value in values.items() if value is not None}
    if url is not None:
        backend: ServerBackend | LocalBackend | LlamaCppBackend
        backend = ServerBackend(url, model=model or "default", api_key=api_key)
    else:
        backend = open_here(model, given)
    talk(backend, said, system=system, resume=resume)


def open_here(model: str | None, given: dict[str, Any]) -> LocalBackend | LlamaCppBackend:
    """Open a model in this process and show how far that is.

    Args:
        model: None means the one that the settings name.
        given: Flags of ``LoadOptions`` by their keys.
    """
    from zse.cli.chat_backends import open_local
    from zse.cli.transfer_display import shown_progress

    settings = load_settings().serve
    name = model or settings.model
    if _is_terminal():
        say(f"loading {name} ...")
    with shown_progress() as progress:
        return open_local(name, with_flags(settings.load, given), progress=progress)


def talk(
    backend: ServerBackend | LocalBackend | LlamaCppBackend,
    values: dict[str, Any],
    *,
    system: str = "",
    resume: str = "",
) -> None:
    """Hold a conversation until its end; ``backend`` is closed then."""
    from zse.cli.chat_commands import run_command
    from zse.cli.chat_session import Session
    from zse.cli.saved_chats import SavedChats

    with closing(backend):
        session = Session(
            backend,
            saved=SavedChats(load_settings().home / _FOLDER),
            values=values,
            system=system,
            is_terminal=_is_terminal(),
        )
        if resume:
            run_command(session, f"/load {resume}")
        session.run(sys.stdin)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
