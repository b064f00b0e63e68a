"""``zse pull``: an object becomes a local file, whole or not at all."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from zse.cli.app import App
from zse.cli.parameters import Force, Json, Resume, Url
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import shown_progress, tell_copied
from zse.errors import UsageError
from zse.settings import Settings, load_settings

app = App()


@app.command("pull")
def command(
    url: Url,
    out: Annotated[
        str | None,
        Option("-o", "--out", metavar="PATH", help="The file or folder; by default ./NAME."),
    ] = None,
    sha256: Annotated[
        str | None, Option(metavar="HEX", help="The digest that the file must have.")
    ] = None,
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Copy URL to a local file.

    URL is s3://bucket/key, hf://owner/name[@revision]/file, https://host/file, a path, or
    oci://HOST/REPOSITORY:TAG for a file that `zse push` put into a registry as an image. The
    bytes are checked against the digest that the store has of them: the SHA-256 that `zse push`
    recorded, a hub's digest, an ETag that is an MD5. A file that is there already stays unless it
    is this object or `--force` is given.
    """
    from zse.store import fetch, open_store, parse_location
    from zse.store.overwrite import existing_copy

    settings = load_settings()
    if url.startswith("oci://"):
        _pull_image(url, out, settings, force=force, as_json=as_json)
        return
    location = parse_location(url)
    path = _target(location.name, out)
    digest = _digest(sha256)
    started = time.monotonic()
    with clean_stop(), shown_progress() as show:
        progress = partial(show, "pulling")
        transfer = existing_copy(
            open_store(location, settings),
            open_store(path, settings),
            force=force,
            progress=progress,
            sha256=digest,
        ) or fetch(location, path, settings, progress=progress, resume=resume, sha256=digest)
    facts = {"path": str(path), "url": str(location)}
    tell_copied("pulled", transfer, str(path), started, facts if as_json else None)


def _pull_image(
    url: str, out: str | None, settings: Settings, *, force: bool, as_json: bool
) -> None:
    from contextlib import closing

    from zse.store.overwrite import check_output
    from zse.stream.oci import copy_oci, open_oci

    started = time.monotonic()
    with closing(open_oci(url, settings)) as source:
        path = _target(source.image.file_name, out)
        check_output(path, settings, force=force)
        with clean_stop(), shown_progress() as show:
            transfer = copy_oci(source, path, partial(show, "pulling"))
        facts = {"path": str(path), "url": url, "digest": source.digest}
    tell_copied("pulled", transfer, str(path), started, facts if as_json else None)


def _target(name: str, out: str | None) -> Path:
    path = Path(out).expanduser() if out else Path()
    if out and not out.endswith("/") and not path.is_dir():
        return path
    if not name or name in (".", ".."):
        raise UsageError("the address has no file name", hint="Name the file with -o PATH.")
    return path / name


def _digest(text: str | None) -> str | None:
    if text is None:
        return None
    digest = text.lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UsageError(
            f"--sha256 {text!r} is no SHA-256",
            hint="Give 64 hexadecimal digits, as sha256sum does.",
        )
    return digest
