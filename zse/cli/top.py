"""``zse top``: what a server is doing, live."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json
from zse.cli.running import DEFAULT_URL, StatsClient, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

app = App()


@app.command("top")
def command(
    url: Annotated[str, Argument(metavar="URL", help="The server.")] = DEFAULT_URL,
    *,
    api_key: Annotated[
        str, Option(envvar="ZSE_API_KEY", show_default=False, help="Key of the server.")
    ] = "",
    every: Annotated[
        float, Option(metavar="SECONDS", min=0.2, max=60.0, help="Time between two looks.")
    ] = 1.0,
    once: Annotated[bool, Option("--once", help="Look once and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show a server's models, queue, speed, cache and memory until Ctrl-C.

    Without a terminal, with --once and with --json it looks once.
    """
    from zse.cli.top_view import lines_of

    with closing(StatsClient(url, api_key=api_key)) as client:
        if as_json:
            typer.echo(json.dumps(client.stats(), indent=2))
        elif once or not sys.stdout.isatty():
            typer.echo("\n".join(lines_of(client.url, client.stats(), None, 0.0)))
        else:
            _watch(client, every)


def _watch(client: StatsClient, every_seconds: float) -> None:
    """Draw until Ctrl-C. A server that goes away is waited for, and said to be away."""
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        for lines in _frames(client, every_seconds):
            live.update(Text("\n".join([*lines, "", "Ctrl-C leaves."])), refresh=True)
            try:
                time.sleep(every_seconds)
            except KeyboardInterrupt:
                return


def _frames(client: StatsClient, every_seconds: float) -> Iterator[list[str]]:
    from zse.cli.top_view import lines_of

    before: dict[str, Any] | None = None
    seen_at = time.monotonic()
    while True:
        try:
            stats = client.stats()
        except UnreachableError as error:
            yield [
                error.message,
                *filter(None, [error.hint]),
                f"Asked again every {every_seconds:g} s.",
            ]
            before = None
            continue
        now = time.monotonic()
        yield lines_of(client.url, stats, before, now - seen_at)
        before, seen_at = stats, now
