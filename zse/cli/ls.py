"""``zse ls``: what lies at an address, and what killed uploads left there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import Json, Url
from zse.errors import NotFoundError, UsageError
from zse.settings import load_settings
from zse.units import size_text

if TYPE_CHECKING:
    from zse.store import Location


app = App()


@app.command("ls")
def command(
    url: Url,
    unfinished: Annotated[
        bool, Option("--unfinished", help="Show uploads to s3:// that nobody finished, instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the object at URL, or those below it.

    URL is s3://bucket[/prefix], hf://owner/name[@revision][/folder], https://host/file, or a path;
    s3:// alone lists the buckets.
    """
    from zse.store import open_store, parse_location

    if url.lower().rstrip("/") == "s3:":
        _list_buckets(as_json=as_json)
        return
    location = parse_location(url)
    if unfinished:
        _list_unfinished(location, as_json=as_json)
        return
    entries = list(open_store(location, load_settings()).list())
    # An empty bucket or folder is an answer; an object that was named and is not there is none.
    if not entries and not location.is_prefix and not location.is_local:
        raise NotFoundError(f"{location} does not exist", hint="List the folder above it.")
    rows = [{"url": str(entry.location), "size_bytes": entry.size_bytes} for entry in entries]
    total_bytes = sum(entry.size_bytes for entry in entries)
    lines = [f"{entry.size_bytes:>15}  {entry.location}" for entry in entries]
    _show(rows, lines, f"objects, {size_text(total_bytes)}", as_json=as_json)


def _show(rows: list[dict[str, Any]], lines: list[str], what: str, *, as_json: bool) -> None:
    """Print rows as JSON; or their lines, and how many of what they are."""
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for line in lines:
        typer.echo(line)
    say(f"{len(lines)} {what}")


def _list_buckets(*, as_json: bool) -> None:
    from zse.store.s3_client import client_of, list_buckets

    settings = load_settings()
    urls = [f"s3://{name}/" for name in list_buckets(client_of(settings.aws, settings.proxies))]
    _show([{"url": url} for url in urls], urls, "buckets", as_json=as_json)


def _list_unfinished(location: Location, *, as_json: bool) -> None:
    if location.scheme != "s3":
        raise UsageError(
            f"{location} is not on S3: only uploads there can be left unfinished",
            hint="Give s3://bucket or s3://bucket/prefix.",
        )
    from zse.store.s3_client import client_of
    from zse.store.s3_unfinished import list_unfinished

    settings = load_settings()
    client = client_of(settings.aws, settings.proxies)
    uploads = [
        {
            "url": f"s3://{location.bucket}/{upload.key}",
            "upload_id": upload.upload_id,
            "started": upload.started,
        }
        for upload in list_unfinished(client, location)
    ]
    lines = [f"{row['started'] or '-':<25}  {row['url']}  {row['upload_id']}" for row in uploads]
    _show(uploads, lines, "unfinished uploads", as_json=as_json)
