"""``zse chat``: talk to a model in this process, or to a server."""

from __future__ import annotations

import sys

import click

from zse.cli.model_argument import MODEL
from zse.settings import load_settings


@click.command(name="chat", short_help="Chat with a model in the terminal.")
@click.argument("model", required=False, type=MODEL)
@click.option("--url", help="Talk to a server, such as http://127.0.0.1:8000, instead.")
@click.option("--api-key", default="unused", show_default=False, help="Key for --url.")
@click.option("--system", default="", help="System message to begin with.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--threads", type=int, help="CPU threads; 0 is one a core, within the quota.")
@click.option("--max-context", type=int, help="Longest conversation in tokens.")
@click.option("--max-tokens", type=int, help="Longest answer in tokens.")
@click.option("--temperature", type=float, help="0 is greedy.  [what the model says]")
@click.option("--seed", type=int, help="Makes answers repeat.")
def command(
    *,
    model: str | None,
    url: str | None,
    api_key: str,
    system: str,
    device: str | None,
    threads: int | None,
    max_context: int | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
) -> None:
    """Chat with MODEL (a .zse file, a checkpoint folder, a hub id or "tiny").

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
            click.echo(f"loading {name} ...", err=True)
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
