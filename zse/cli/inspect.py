"""`zse inspect`: what a .zse file says about itself, and whether its bytes agree.

It is shown as tables to people, as JSON to programs.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.inspect_gguf import show_gguf
from zse.cli.parameters import Json, Model
from zse.cli.titled_tables import Table, mapping_table, print_tables
from zse.format.names import SPARE_PREFIXES
from zse.settings import load_settings
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.format.reader import ZSEReader
    from zse.format.spec import Region, ZSEHeader
    from zse.stream.remote import RemoteReader

    Reader = ZSEReader | RemoteReader

app = App()
_VERIFIED = "yes: every digest, padding byte and scale"


@app.command("inspect")
def command(
    model: Model,
    as_json: Json = False,
    verify: Annotated[
        bool, Option("--verify", help="Read every byte: digests, padding, scales.")
    ] = False,
) -> None:
    """Show what a .zse file holds: header, tensors, groups, sections, digests, provenance.

    If the file is at an address, only its header is read, unless --verify is given. For a GGUF
    file it shows settings and tensors, and whether zse can convert it.
    """
    from zse.models.resolve import GgufFile, resolve_model
    from zse.stream.remote import RemoteReader

    if isinstance(named := resolve_model(model), GgufFile):
        show_gguf(named.path, as_json=as_json)
        return
    with _opened(model) as reader:
        sha256 = ""
        if verify:
            if isinstance(reader, RemoteReader):
                say(f"reading all {size_text(reader.size_bytes)} of {reader.path}")
            reader.verify()
            if not isinstance(reader, RemoteReader):  # its file is in the page cache now
                with reader.path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        report = _describe(reader, verified=verify, sha256=sha256)
        if as_json:
            typer.echo(json.dumps(report, indent=2, sort_keys=True))
        else:
            print_tables(_build_tables(reader.header, report))


def _opened(model: str) -> Reader:
    from zse.format.reader import ZSEReader
    from zse.models.resolve import (
        HubRepository,
        LocalFolder,
        OciFile,
        RemoteFile,
        RemoteGguf,
        not_a_file,
        resolve_model,
    )
    from zse.quantize.locate import locate_model
    from zse.stream.opening import open_remote

    match resolve_model(model):
        case RemoteFile(location=location):
            return open_remote(location, load_settings())
        case OciFile(reference=reference):
            return open_remote(reference, load_settings())
        case LocalFolder() | HubRepository() | RemoteGguf() as checkpoint:
            raise not_a_file(checkpoint)
        case _:
            return ZSEReader(locate_model(model, load_settings()))


def _describe(reader: Reader, *, verified: bool, sha256: str) -> dict[str, Any]:
    """Return the whole header, the file's size in bytes and a summary, as JSON values."""
    header = reader.header
    return {
        "path": str(reader.path),
        "size_bytes": reader.size_bytes,
        "verified": verified,
        "header_sha256": hashlib.sha256(header.to_bytes()).hexdigest(),
        **({"sha256": sha256} if sha256 else {}),
        "schemes": {scheme.value: size for scheme, size in header.bytes_by_scheme().items()},
        "parameters": sum(math.prod(tensor.shape) for tensor in header.tensors),
        "spare_bytes": sum(group.length_bytes for group in header.groups if group.is_spare),
        **json.loads(header.to_bytes()),
    }


def _build_tables(header: ZSEHeader, report: dict[str, Any]) -> list[Table]:
    """Return the tables that a person reads, in order; ``report`` is what ``_describe`` says."""
    summary = [
        ("file", report["path"]),
        ("size", f"{report['size_bytes']} bytes ({size_text(report['size_bytes'])})"),
        ("format version", str(header.format_version)),
        ("architecture", header.architecture),
        ("parameters", f"{report['parameters']:,}"),
        *(
            (f"stored as {scheme}", size_text(size))
            for scheme, size in sorted(report["schemes"].items())
        ),
        *_spare_rows(header),
        ("verified", _VERIFIED if report["verified"] else "header only"),
        *((name, report[name]) for name in ("header_sha256", "sha256") if name in report),
    ]
    tensors = [
        (
            tensor.name,
            tensor.scheme.value + (f"/{tensor.group_size}" if tensor.group_size else ""),
            " x ".join(map(str, tensor.shape)),
            str(tensor.parts[0].offset_bytes),
            str(tensor.length_bytes),
        )
        for tensor in header.tensors
    ]
    return [
        Table(title="file", columns=("field", "value"), rows=summary),
        mapping_table("model config", header.model_config),
        mapping_table("provenance", header.provenance),
        _region_table("sections", header.sections),
        _region_table("groups", header.groups),
        Table(
            title="tensors", columns=("name", "scheme", "shape", "offset", "bytes"), rows=tensors
        ),
    ]


def _spare_rows(header: ZSEHeader) -> list[tuple[str, str]]:
    """Return what the file has for heads that guess further tokens, by their kind."""
    rows = []
    for prefix in SPARE_PREFIXES:
        groups = [group for group in header.groups if group.name.startswith(prefix)]
        if groups:
            size, kind = size_text(sum(one.length_bytes for one in groups)), prefix[:-1]
            what = f"{size}, groups {kind}.*, which --speculate {kind} reads"
            rows.append(("not loaded", what))
    return rows


def _region_table(title: str, regions: Sequence[Region]) -> Table:
    rows = [(r.name, str(r.offset_bytes), str(r.length_bytes), r.sha256) for r in regions]
    return Table(title=title, columns=("name", "offset", "bytes", "sha256"), rows=rows)
