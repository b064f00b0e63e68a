"""Titled tables of plain text: drawn on a terminal that may have it, as plain text elsewhere."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from zse.printable import printable
from zse.records import record
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@record
class Table:
    """A titled table of plain text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def mapping_table(title: str, mapping: Mapping[str, Any]) -> Table:
    """Return a table of names and values; what is no text is written as JSON."""
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value, sort_keys=True))
        for key, value in sorted(mapping.items())
    ]
    return Table(title=title, columns=("field", "value"), rows=rows)


def print_tables(tables: Sequence[Table]) -> None:
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
