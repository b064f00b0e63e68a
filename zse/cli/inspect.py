"""`zse inspect`: what a .zse file says about itself, and whether its bytes agree.

It is shown as tables to people, as JSON to programs.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import Json, Model
from zse.printable import printable
from zse.records import record
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


@record
class Table:
    """A titled table of plain text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


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
    from zse.stream.remote import RemoteReader

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
            _print_tables(_build_tables(reader.header, report))


def _opened(model: str) -> Reader:
    from zse.format.reader import ZSEReader
    from zse.models.resolve import HubRepository, LocalFolder, RemoteFile, not_a_file, resolve_model
    from zse.quantize.locate import locate_model
    from zse.stream.opening import open_remote

    match resolve_model(model):
        case RemoteFile(location=location):
            return open_remote(location, load_settings())
        case LocalFolder() | HubRepository() as checkpoint:
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
        *_spare_row(report["spare_bytes"]),
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
        _mapping_table("model config", header.model_config),
        _mapping_table("provenance", header.provenance),
        _region_table("sections", header.sections),
        _region_table("groups", header.groups),
        Table(
            title="tensors", columns=("name", "scheme", "shape", "offset", "bytes"), rows=tensors
        ),
    ]


def _spare_row(spare_bytes: int) -> list[tuple[str, str]]:
    """Return what the file has for heads that guess further tokens (multi-token prediction)."""
    return [("not loaded", f"{size_text(spare_bytes)}, groups mtp.*")] if spare_bytes else []


def _region_table(title: str, regions: Sequence[Region]) -> Table:
    rows = [(r.name, str(r.offset_bytes), str(r.length_bytes), r.sha256) for r in regions]
    return Table(title=title, columns=("name", "offset", "bytes", "sha256"), rows=rows)


def _mapping_table(title: str, mapping: Any) -> Table:
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value, sort_keys=True))
        for key, value in sorted(mapping.items())
    ]
    return Table(title=title, columns=("field", "value"), rows=rows)


def _print_tables(tables: Sequence[Table]) -> None:
    """Print tables: drawn on a terminal that may have it, as plain text elsewhere."""
    is_drawn = sys.stdout.isatty() and not load_settings().no_color
    (_print_rich if is_drawn else _print_plain)([table for table in tables if table.rows])


def _print_plain(tables: Sequence[Table]) -> None:
    for table in tables:
        typer.echo(f"[{table.title}]")
        rows = [tuple(printable(cell) for cell in row) for row in (table.columns, *table.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
        # The heading of two-column tables says nothing that the rows do not.
        for row in rows[1:] if table.columns == ("field", "value") else rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            typer.echo("  ".join(cells).rstrip())
        typer.echo()


def _print_rich(tables: Sequence[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    for table in tables:
        shown = RichTable(title=table.title, title_justify="left", title_style="bold")
        for column in table.columns:
            numeric = column in ("offset", "bytes")
            shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(printable(cell)) for cell in row))
        console.print(shown)
