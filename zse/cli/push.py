"""``zse push``: a local file goes to object storage, whole or not at all."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, Url, complete_model
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import summary, transfer_progress
from zse.errors import UsageError
from zse.models.resolve import (
    SUFFIX,
    Builtin,
    HubRepository,
    LocalFile,
    LocalFolder,
    RemoteFile,
    not_a_file,
    resolve_model,
)
from zse.settings import Settings, load_settings

if TYPE_CHECKING:
    from pathlib import Path


app = App()


@app.command("push")
def command(
    model: Annotated[
        str,
        Argument(
            metavar="FILE",
            help='A path, or "tiny", the built-in one.',
            autocompletion=complete_model,
        ),
    ],
    url: Url,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Go on with what a killed push left; keep what is sent if this one fails.",
        ),
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Replace an object that holds something else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy FILE to URL: s3://bucket/key, or a path. A URL that ends in / gets FILE's name.

    Nothing appears under the name before every byte has arrived and was checked. A push that fails
    or is stopped leaves nothing; after one that was killed, `zse ls --unfinished` shows what is
    left, and `--resume` takes it up or removes it. An object that is there already stays unless it
    holds the same bytes or `--force` is given.
    """
    from zse.store import open_store, open_writable, parse_location, put_file
    from zse.store.overwrite import existing_copy

    settings = load_settings()
    file, name = _local_file(model, settings)
    target = url + name if url.endswith("/") else url
    location = parse_location(target)
    started = time.monotonic()
    with clean_stop(), transfer_progress("pushing") as progress:
        transfer = existing_copy(
            open_store(file, settings),
            open_writable(location, settings),
            force=force,
            progress=progress,
        ) or put_file(file, location, settings, progress=progress, resume=resume)
    seconds = time.monotonic() - started
    typer.echo(summary("pushed", transfer, str(location), seconds), err=True)
    if as_json:
        report = {"url": location.url, "seconds": seconds, **asdict(transfer)}
        typer.echo(json.dumps(report, sort_keys=True))


def _local_file(model: str, settings: Settings) -> tuple[Path, str]:
    """Return the file to send and the name that it gets in a folder."""
    from zse.quantize.locate import locate_model

    match resolve_model(model):
        case LocalFile(path=path):
            return path, path.name
        case Builtin(name=name):
            return locate_model(name, settings), f"{name}{SUFFIX}"
        case RemoteFile(location=location):
            raise UsageError(
                f"{location} is not on this machine",
                hint=f"Fetch it first: zse pull {quote(str(location))}",
            )
        case LocalFolder() | HubRepository() as checkpoint:
            raise not_a_file(checkpoint)
