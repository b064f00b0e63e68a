"""What ``zse inspect`` shows of a GGUF file: its metadata, and the schemes it would convert to."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from zse.cli.titled_tables import Table, mapping_table, print_tables
from zse.units import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from zse.quantize.gguf.header import GgufHeader

_MOST_VALUES = 8
"""Of a list of the file's, such as its tokens."""


def show_gguf(path: Path, *, as_json: bool) -> None:
    """Print what a file holds.

    Raises:
        CheckpointError: It is damaged.
        UnsupportedModelError: Its version, or a type of its numbers, is not known.
    """
    from zse.quantize.gguf.documents import read_header

    header = read_header(path)
    report = _describe(path, header)
    if as_json:
        typer.echo(json.dumps(report, indent=2, sort_keys=True))
        return
    tensors = [
        (one["name"], one["type"], " x ".join(map(str, one["shape"])), str(one["length_bytes"]))
        for one in report["tensors"]
    ]
    summary = {
        "file": report["path"],
        "size": f"{report['size_bytes']} bytes ({size_text(report['size_bytes'])})",
        "parameters": f"{report['parameters']:,}",
        "converts": "yes" if report["converts"] else f"no: {report['why_not']}",
        **{f"stored as {kind}": size_text(size) for kind, size in report["types"].items()},
    }
    print_tables(
        [
            Table(title="file", columns=("field", "value"), rows=list(summary.items())),
            mapping_table("settings", report["settings"]),
            Table(title="tensors", columns=("name", "type", "shape", "bytes"), rows=tensors),
        ]
    )


def _describe(path: Path, header: GgufHeader) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type.name] += tensor.length_bytes
    why_not = _why_not(path, header)
    return {
        "path": str(path),
        "size_bytes": path.stat().st_size,
        "parameters": sum(math.prod(tensor.shape) for tensor in header.tensors.values()),
        "converts": not why_not,
        "why_not": why_not,
        "types": dict(sizes),
        "settings": {name: _shortened(value) for name, value in header.settings.items()},
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.type.name,
                "shape": list(tensor.shape),
                "offset_bytes": tensor.offset_bytes,
                "length_bytes": tensor.length_bytes,
            }
            for tensor in header.tensors.values()
        ],
    }


def _why_not(path: Path, header: GgufHeader) -> str:
    """Return why a file does not become a .zse file; empty where it does."""
    from zse.errors import ConversionError
    from zse.models.families import read_checkpoint
    from zse.quantize.gguf.documents import config_in

    try:
        read_checkpoint(config_in(path, header), None)
    except ConversionError as error:
        return error.message
    return ""


def _shortened(value: Any) -> Any:
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        return [*value[:_MOST_VALUES], f"... {len(value):,} in all"]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
