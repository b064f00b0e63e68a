"""``zse chat``: talk to a model in this process, or to a server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zse.cli.app import App
from zse.cli.parameters import Device, OptionalModel
from zse.settings import load_settings

app = App()


@app.command("chat")
def command(
    model: OptionalModel = None,
    url: Annotated[
        str | None,
        typer.Option(help="Talk to a server, such as http://127.0.0.1:8000, instead."),
    ] = None,
    api_key: Annotated[str, typer.Option(show_default=False, help="Key for --url.")] = "unused",
    system: Annotated[str, typer.Option(help="System message to begin with.")] = "",
    device: Device = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; 0 is one a core, within the quota.")
    ] = None,
    max_context: Annotated[int | None, typer.Option(help="Longest conversation in tokens.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy.  [what the model says]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeat.")] = None,
) -> None:
    """Chat with MODEL; without one, with the model that ZSE_MODEL names.

    Without a terminal every line of standard input is one message and only answers are printed.
    """
    from zse.cli.chat_backends import AnswerOptions, LocalBackend, ServerBackend
    from zse.cli.chat_session import Session
    from zse.cli.transfer_display import opening_progress

    settings = load_settings()
    options = AnswerOptions(max_tokens=max_tokens, temperature=temperature, seed=seed)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    name = model or settings.serve.model
    if url is not None:
        backend: ServerBackend | LocalBackend
        backend = ServerBackend(url, model=model or "default", api_key=api_key, options=options)
    else:
        if is_terminal:
            typer.echo(f"loading {name} ...", err=True)
        with opening_progress() as progress:
            backend = LocalBackend(
                name,
                device=settings.serve.load.device.name if device is None else device,
                threads=settings.serve.load.device.threads if threads is None else threads,
                max_context=settings.serve.load.batch.max_context
                if max_context is None
                else max_context,
                options=options,
                progress=progress,
            )
    with backend:
        Session(backend, system=system, is_terminal=is_terminal).run(sys.stdin)
