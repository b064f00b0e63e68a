"""``zse pull``: an object becomes a local file, whole or not at all."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import summary, transfer_progress
from zse.errors import UsageError


@click.command()
@click.argument("url")
@click.option("-o", "--out", metavar="PATH", help="The file or folder; by default ./NAME.")
@click.option("--sha256", metavar="HEX", help="The digest that the file must have.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what a killed pull left; keep what has come if this one fails.",
)
@click.option("--force", is_flag=True, help="Replace a file that holds something else.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
def command(
    url: str, out: str | None, sha256: str | None, resume: bool, force: bool, as_json: bool
) -> None:
    """Copy URL to a local file.

    URL is s3://bucket/key, hf://owner/name[@revision]/file, https://host/file, or a path. The
    bytes are checked against the digest that the store has of them: the SHA-256 that `zse push`
    recorded, a hub's digest, an ETag that is an MD5. A file that is there already stays unless it
    is this object or `--force` is given.
    """
    from zse.store import fetch, open_store, parse_location
    from zse.store.overwrite import existing_copy

    location = parse_location(url)
    path = _target(location.name, out)
    digest = _digest(sha256)
    started = time.monotonic()
    with clean_stop(), transfer_progress("pulling") as progress:
        transfer = existing_copy(
            open_store(location), open_store(path), force=force, progress=progress, sha256=digest
        ) or fetch(location, path, progress=progress, resume=resume, sha256=digest)
    seconds = time.monotonic() - started
    click.echo(summary("pulled", transfer, str(path), seconds), err=True)
    if as_json:
        report = {"path": str(path), "url": str(location), "seconds": seconds, **asdict(transfer)}
        click.echo(json.dumps(report, sort_keys=True))


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
