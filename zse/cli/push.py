"""``zse push``: a local file goes to object storage, whole or not at all."""

from __future__ import annotations

import json
import time
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from zse.cli.app import App, say
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
    OciFile,
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

    With oci://HOST/REPOSITORY:TAG it becomes an image of its own in a registry, which nodes mount
    as a volume and `zse serve oci://...` reads in ranges.

    The name appears only when every byte has arrived and was checked. A push that fails
    or is stopped leaves nothing; after one that was killed, `zse ls --unfinished` shows what is
    left, and `--resume` takes it up or removes it. An object that is there already stays unless it
    holds the same bytes or `--force` is given.
    """
    from zse.store import open_store, open_writable, parse_location, put_file
    from zse.store.overwrite import existing_copy

    settings = load_settings()
    file, name = _local_file(model, settings)
    if url.startswith("oci://"):
        _push_image(file, name, url, settings, as_json=as_json)
        return
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


def _push_image(file: Path, name: str, url: str, settings: Settings, *, as_json: bool) -> None:
    from zse.oci.weights.transfer import push_weights, reference_of

    reference = reference_of(url)
    with clean_stop():
        digest = push_weights(file, name, reference, settings.registry_auth_file, report=say)
    if as_json:
        size = file.stat().st_size
        typer.echo(json.dumps({"url": url, "digest": digest, "size_bytes": size}))
    else:
        say(f"pushed: oci://{reference.host}/{reference.repository}@{digest}")


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
        case OciFile(reference=reference):
            raise UsageError(
                f"{reference} is not on this machine", hint=f"Fetch it first: zse pull {reference}"
            )
        case LocalFolder() | HubRepository() | GgufFile() | RemoteGguf() as checkpoint:
            raise not_a_file(checkpoint)
