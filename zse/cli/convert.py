"""``zse convert``: a checkpoint becomes one .zse file, here or in object storage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from zse.cli.model_argument import MODEL
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import opening_progress, size_text
from zse.errors import needing

if TYPE_CHECKING:
    from zse.quantize.report import ConversionReport


@click.command()
@click.argument("model", type=MODEL)
@click.option(
    "-o", "--out", required=True, metavar="OUT", help="The file: a path or s3://bucket/key."
)
@click.option(
    "--quant",
    type=click.Choice(["int4", "nf4", "int8", "fp16", "bf16"], case_sensitive=False),
    default="int4",
    show_default=True,
    help="How linear layers are stored.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    help="Weights that share a scale (int4: 128 by default, nf4: 64).",
)
@click.option(
    "--lm-head",
    type=click.Choice(["auto", "int8", "fp16", "bf16"], case_sensitive=False),
    default="auto",
    show_default=True,
    help="How the output head is stored; auto is int8 unless --quant is 16-bit.",
)
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@click.option(
    "--tokenizer",
    metavar="FOLDER",
    help="Take the tokenizer from there, for a checkpoint that was saved without one.",
)
@click.option("--chat-template", metavar="FILE", help="Take this Jinja template.")
@click.option(
    "--allow-no-tokenizer", is_flag=True, help="Convert a checkpoint that has no tokenizer."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what a killed run left; keep what is done if this run fails.",
)
@click.option(
    "--force", is_flag=True, help="Replace what OUT names; write inside the checkpoint's folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
def command(
    model: str,
    out: str,
    quant: str,
    group_size: str | None,
    lm_head: str,
    revision: str | None,
    tokenizer: str | None,
    chat_template: str | None,
    allow_no_tokenizer: bool,
    resume: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Turn MODEL into one .zse file.

    MODEL is a checkpoint folder in Hugging Face form, a hub id such as owner/name (or
    hf://owner/name@revision, or the address of its page), a folder in object storage
    (s3://bucket/folder/), or the name of a built-in model (tiny). Nothing that is there already is
    replaced, unless --force says so.
    """
    with needing("convert", "converting a checkpoint"):
        from zse.quantize.convert import convert_model

    with clean_stop(), opening_progress() as show:
        report = convert_model(
            model,
            out,
            quant,
            group_size=int(group_size) if group_size else None,
            lm_head=lm_head,
            revision=revision,
            tokenizer=tokenizer,
            chat_template=chat_template,
            allow_no_tokenizer=allow_no_tokenizer,
            resume=resume,
            force=force,
            progress=lambda now: show(now.stage, now.done_bytes, now.total_bytes),
        )
    click.echo(_summary(report), err=True)
    if as_json:
        click.echo(json.dumps(asdict(report), sort_keys=True))


def _summary(report: ConversionReport) -> str:
    schemes = ", ".join(f"{count} {scheme}" for scheme, count in report.schemes.items())
    warnings = "".join(f"\nwarning: {words}" for words in report.warnings)
    resumed = f"\nresumed: {report.resumed_groups} groups" if report.resumed_groups else ""
    return (
        f"wrote: {report.path}\n"
        f"size: {size_text(report.size_bytes)} (checkpoint: {size_text(report.source_bytes)})\n"
        f"tensors: {report.tensors} ({schemes})\n"
        f"sha256: {report.sha256}\n"
        f"time: {report.seconds:.1f} s{resumed}{warnings}"
    )
