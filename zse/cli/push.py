"""``zse push``: a local file goes to object storage, whole or not at all."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from zse.cli.app import App
from zse.cli.parameters import Force, Json, Resume, Url, complete_model
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import shown_progress, tell_copied
from zse.errors import UsageError
from zse.models.resolve import (
    SUFFIX,
    Builtin,
    GgufFile,
    HubRepository,
    LocalFile,
    LocalFolder,
    RemoteFile,
    RemoteGguf,
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
    resume: Resume = False,
    force: Force = False,
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
    with clean_stop(), shown_progress() as show:
        progress = partial(show, "pushing")
        transfer = existing_copy(
            open_store(file, settings),
            open_writable(location, settings),
            force=force,
            progress=progress,
        ) or put_file(file, location, settings, progress=progress, resume=resume)
    facts = {"url": location.url}
    tell_copied("pushed", transfer, str(location), started, facts if as_json else None)


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
        case LocalFolder() | HubRepository() | GgufFile() | RemoteGguf() as checkpoint:
            raise not_a_file(checkpoint)
