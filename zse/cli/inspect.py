"""`zse inspect`: what a .zse file says about itself, and whether its bytes agree."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import Json, Model

if TYPE_CHECKING:
    from zse.cli.inspect_report import Reader

app = App()


@app.command("inspect")
def command(
    model: Model,
    as_json: Json = False,
    verify: Annotated[
        bool, Option("--verify", help="Read every byte: digests, padding, scales.")
    ] = False,
) -> None:
    """Show what a .zse file holds: header, tensors, groups, sections, digests, provenance.

    Of a file behind an address only the header is read, unless --verify is given.
    """
    from zse.cli.inspect_report import build_tables, describe, print_tables
    from zse.stream.remote import RemoteReader
    from zse.units import size_text

    with _opened(model) as reader:
        sha256 = ""
        if verify:
            if isinstance(reader, RemoteReader):
                say(f"reading all {size_text(reader.size_bytes)} of {reader.path}")
            reader.verify()
            if not isinstance(reader, RemoteReader):  # its file is in the page cache now
                with reader.path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        report = describe(reader, verified=verify, sha256=sha256)
        if as_json:
            typer.echo(json.dumps(report, indent=2, sort_keys=True))
        else:
            print_tables(build_tables(reader.header, report))


def _opened(model: str) -> Reader:
    from zse.format.reader import ZSEReader
    from zse.models.resolve import HubRepository, LocalFolder, RemoteFile, not_a_file, resolve_model
    from zse.quantize.locate import locate_model
    from zse.settings import load_settings
    from zse.stream.opening import open_remote

    match resolve_model(model):
        case RemoteFile(location=location):
            return open_remote(location, load_settings())
        case LocalFolder() | HubRepository() as checkpoint:
            raise not_a_file(checkpoint)
        case _:
            return ZSEReader(locate_model(model, load_settings()))
