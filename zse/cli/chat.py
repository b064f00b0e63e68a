"""``zse chat``: talk to a model in this process, or to a server."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, Any

from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import OptionalModel
from zse.cli.table_flags import with_flags_of
from zse.option import options_of, with_flags
from zse.options import LoadOptions
from zse.settings import load_settings

_FLAGS = [key for key, row in options_of(LoadOptions).items() if row.by_hand]

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
    max_tokens: Annotated[int | None, Option(help="Longest answer in tokens.")] = None,
    temperature: Annotated[float | None, Option(help="0 is greedy.  [what the model says]")] = None,
    seed: Annotated[int | None, Option(help="Makes answers repeat.")] = None,
    given: dict[str, Any],
) -> None:
    """Chat with MODEL; without one, with the model that ZSE_MODEL names.

    Without a terminal every line of standard input is one message and only answers are printed.
    """
    from zse.cli.chat_backends import LlamaCppBackend, LocalBackend, ServerBackend, open_local
    from zse.cli.chat_session import Session
    from zse.cli.transfer_display import shown_progress

    settings = load_settings().serve
    values = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    said = {name: value for name, value in values.items() if value is not None}
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    backend: ServerBackend | LocalBackend | LlamaCppBackend
    if url is not None:
        backend = ServerBackend(url, model=model or "default", api_key=api_key, given=said)
    else:
        name = model or settings.model
        if is_terminal:
            say(f"loading {name} ...")
        with shown_progress() as progress:
            load = with_flags(settings.load, given)
            backend = open_local(name, load, given=said, progress=progress)
    with closing(backend):
        Session(backend, system=system, is_terminal=is_terminal).run(sys.stdin)
