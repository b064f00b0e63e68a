"""The page docs/reference/api.md: what is done with every field of every body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from zse.serve.app import HOT_ROUTES
from zse.serve.field_tables import TABLES, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

    from zse.serve.field_tables import FieldRow

_INTRODUCTION = """# Fields of requests

Generated from the code by `scripts/reference.py`. A test sends every field of this page to a
running server and holds the answer against it. The routes are on [a page of their own](routes.md).

Each field of a body is one of these:

- **honoured**: read, checked and done. A wrong type or value is a 400 that names it.
- **accepted**: it changes no answer, and nothing needs to be said about it.
- **refused**: it would change the answer, and this server does not do it. Unless it holds one of
  the values that ask for nothing, it is a 400 with the code `unsupported_parameter`.
- **without effect**: it changes no answer. The header `x-zse-ignored` names it, as it names every
  field that nobody knows, wherever it stands.

`null` is the same as leaving a field out. Images, audio and files are refused by name: there is no
model for them yet.
"""


def api_page() -> str:
    lines = [_INTRODUCTION]
    bodies: dict[type[msgspec.Struct], list[str]] = {}
    for route in HOT_ROUTES:
        if route.method == "POST" and route.body is not None:
            bodies.setdefault(route.body(), []).append(route.described_path)
    for kind, paths in bodies.items():
        if kind in TABLES:
            lines += [f"## POST {', '.join(paths)}", "", *_tables(list(rows_of(kind))), ""]
    return "\n".join(lines)


def _tables(rows: list[FieldRow]) -> Iterator[str]:
    yield from ("| field | holds | what happens |", "|---|---|---|")
    for row in rows:
        if row.verdict in ("honoured", "accepted"):
            required = ", required" if row.is_required else ""
            yield f"| {_path(row)} | {row.kind} | {row.verdict}{required} |"
    others = [row for row in rows if row.verdict in ("refused", "without effect")]
    if others:
        yield from ("", "| field | asks for nothing | what happens |", "|---|---|---|")
    for row in others:
        values = ", ".join(f"`{json.dumps(value)}`" for value in _distinct(row.asks_nothing))
        advice = f": {row.advice}" if row.advice else ""
        yield f"| {_path(row)} | {values} | {row.verdict}{advice} |"


def _path(row: FieldRow) -> str:
    kinds = [tag for _, tag in row.tags]
    return f"`{row.path}`" + (f" of `{'`, `'.join(kinds)}`" if kinds else "")


def _distinct(values: tuple[object, ...]) -> list[object]:
    """Leave out numbers that are written in two ways: 1 and 1.0."""
    return [value for place, value in enumerate(values) if value not in values[:place]]
