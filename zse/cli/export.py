"""``zse export``: a .zse file becomes a checkpoint folder that transformers and others load."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from zse.cli.app import App
from zse.cli.parameters import Force, Json, Model, Resume
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import shown_progress
from zse.errors import needing
from zse.units import size_text

if TYPE_CHECKING:
    from zse.quantize.export.model import ExportReport

Out = Annotated[str, Option("-o", "--out", metavar="DIR", help="The folder, which is made.")]
Format = Annotated[
    Literal["safetensors", "compressed-tensors"],
    Option(help="16 bits, or INT4 matrices as compressed-tensors packs them."),
]
DType = Annotated[
    Literal["auto", "fp16", "bf16"],
    Option(help="Type of 16-bit weights; auto is what the file or its checkpoint had."),
]

app = App()


@app.command("export")
def command(
    model: Model,
    out: Out,
    format: Format = "safetensors",  # noqa: A002 - what the option is called
    dtype: DType = "auto",
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write MODEL as a checkpoint: safetensors, config.json, tokenizer and chat template.

    The folder gets its name when it is complete. A folder that exists already is replaced only
    with --force, and only if it is a checkpoint.
    """
    with needing("convert", "exporting a model"):
        from zse.quantize.export.model import export_model

    with clean_stop(), shown_progress() as show:
        report = export_model(
            model,
            out,
            format=format,
            dtype=dtype,
            resume=resume,
            force=force,
            progress=lambda done, total: show("exporting", done, total),
        )
    typer.echo(_summary(report), err=True)
    if as_json:
        typer.echo(json.dumps(asdict(report), sort_keys=True))


def _summary(report: ExportReport) -> str:
    packed = f", {report.packed_matrices} matrices INT4" if report.packed_matrices else ""
    resumed = f"\nresumed: {report.resumed_files} files" if report.resumed_files else ""
    warnings = "".join(f"\nwarning: {words}" for words in report.warnings)
    return (
        f"wrote: {report.path}\n"
        f"size: {size_text(report.size_bytes)} in {report.files} files\n"
        f"tensors: {report.tensors} ({report.dtype}{packed})\n"
        f"time: {report.seconds:.1f} s{resumed}{warnings}"
    )
