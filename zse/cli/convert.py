"""``zse convert``: a checkpoint becomes one .zse file, here or in object storage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from zse.cli.app import App
from zse.cli.mixed_plan import describe_plan, plan_json
from zse.cli.parameters import AllowNoTokenizer, Json, Model, Resume
from zse.cli.stopping import clean_stop
from zse.cli.transfer_display import shown_progress
from zse.errors import needing
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.quantize.mixed.plan import MixedPlan
    from zse.quantize.options import ConversionOptions
    from zse.quantize.report import ConversionProgress, ConversionReport

Out = Annotated[
    str, Option("-o", "--out", metavar="OUT", help="The file: a path or s3://bucket/key.")
]
LinearScheme = Annotated[
    Literal["int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "fp16", "bf16"] | None,
    Option(help="How linear layers are stored.  [int4, or what a quantized checkpoint has]"),
]
GroupSize = Annotated[
    Literal["16", "32", "64", "128"] | None,
    Option(
        help="Weights that share a scale (int4: 128 by default, int3 and nf4: 64, int2 and mxfp4: "
        "32, nl4: 16)."
    ),
]
AttentionScheme = Annotated[
    Literal["auto", "same", "int8"],
    Option(
        help="How the matrices of queries, keys and values are stored: as other linear layers, or "
        "in int8; auto is int8 beside int4 without --group-size, where they are small."
    ),
]
HeadScheme = Annotated[
    Literal["auto", "int8", "fp16", "bf16"],
    Option(help="How the output head is stored; auto is int8 unless --quant is 16-bit."),
]
Revision = Annotated[str | None, Option(help="Branch, tag or commit of a hub id.")]
Tokenizer = Annotated[
    str | None,
    Option(
        metavar="FOLDER",
        help="Take the tokenizer from there, for a checkpoint that was saved without one.",
    ),
]
ChatTemplate = Annotated[str | None, Option(metavar="FILE", help="Take this Jinja template.")]
Calibrate = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Have the model read this text, or these conversations (.jsonl), and choose codes by "
        'what comes of it; "sample" is a text that zse brings.',
    ),
]
TargetBits = Annotated[
    float | None,
    Option(
        metavar="BITS",
        help="Choose a scheme for each weight by what its errors cost, so that weights of linear "
        "layers have so many bits on average, scales counted.",
    ),
]
TargetGib = Annotated[
    float | None, Option(metavar="GIB", help="The same, so that the file has at most so many GiB.")
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Show which schemes a target leads to, and write nothing.")
]
MergeLora = Annotated[
    list[str] | None,
    Option(
        metavar="FOLDER",
        help="Add a LoRA adapter in PEFT's form to the weights; may be given several times.",
    ),
]
Medusa = Annotated[
    str | None,
    Option(
        metavar="FOLDER",
        help="Keep the Medusa heads of this folder in the file, for --speculate medusa.",
    ),
]
Device = Annotated[
    str,
    Option(
        metavar="DEVICE",
        help="Where it is computed: cpu, cuda or cuda:N; auto is a GPU where torch sees one.",
    ),
]
Force = Annotated[
    bool, Option("--force", help="Replace what OUT names; write inside the checkpoint's folder.")
]

app = App()


@app.command("convert")
def command(
    model: Model,
    out: Out,
    quant: LinearScheme = None,
    group_size: GroupSize = None,
    attention: AttentionScheme = "auto",
    lm_head: HeadScheme = "auto",
    revision: Revision = None,
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    allow_no_tokenizer: AllowNoTokenizer = False,
    calibrate: Calibrate = None,
    target_bits: TargetBits = None,
    target_gib: TargetGib = None,
    dry_run: DryRun = False,
    merge_lora: MergeLora = None,
    medusa: Medusa = None,
    device: Device = "auto",
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Turn MODEL into one .zse file.

    MODEL is a checkpoint folder in Hugging Face form, a hub id such as owner/name (or
    hf://owner/name@revision, or the address of its page), a folder in object storage
    (s3://bucket/folder/), or the name of a built-in model (tiny). An output that exists already
    is replaced only with --force.
    """
    with needing("convert", "converting a checkpoint"):
        from zse.quantize.options import ConversionOptions
    options = ConversionOptions(
        quantization=quant,
        group_size=int(group_size) if group_size else None,
        attention=attention,
        lm_head=lm_head,
        revision=revision,
        tokenizer=tokenizer,
        chat_template=chat_template,
        allow_no_tokenizer=allow_no_tokenizer,
        calibrate=calibrate,
        target_bits=target_bits,
        target_gib=target_gib,
        merge_lora=merge_lora or (),
        medusa=medusa,
        device=device,
        resume=resume,
        force=force,
    )
    if dry_run:
        plan = _planned(model, options)
        typer.echo(json.dumps(plan_json(plan)) if as_json else describe_plan(plan))
        return
    report = _converted(model, out, options)
    typer.echo(_summary(report), err=True)
    if as_json:
        typer.echo(json.dumps(asdict(report), sort_keys=True))


def _planned(model: str, options: ConversionOptions) -> MixedPlan:
    from zse.quantize.mixed.dry_run import plan_model
    from zse.settings import load_settings

    with clean_stop(), shown_progress() as show:
        return plan_model(model, options, load_settings(), progress=_shown(show))


def _converted(model: str, out: str, options: ConversionOptions) -> ConversionReport:
    from zse.quantize.convert import convert_with

    with clean_stop(), shown_progress() as show:
        return convert_with(
            model,
            out,
            options,
            progress=_shown(show),
            on_plan=lambda plan: typer.echo(describe_plan(plan), err=True),
        )


def _shown(show: Callable[[str, int, int], None]) -> Callable[[ConversionProgress], None]:
    return lambda now: show(now.stage, now.done_bytes, now.total_bytes)


def _summary(report: ConversionReport) -> str:
    schemes = ", ".join(f"{count} {scheme}" for scheme, count in report.schemes.items())
    warnings = "".join(f"\nwarning: {words}" for words in report.warnings)
    kept = f"\nkept: {report.kept_packed} as the checkpoint has them" if report.kept_packed else ""
    read = report.calibration
    calibrated = f"calibrated: by {read['tokens']} tokens of {read['text']}\n" if read else ""
    resumed = f"\nresumed: {report.resumed_groups} groups" if report.resumed_groups else ""
    return (
        f"wrote: {report.path}\n"
        f"size: {size_text(report.size_bytes)} (checkpoint: {size_text(report.source_bytes)})\n"
        f"tensors: {report.tensors} ({schemes}){kept}\n"
        f"{calibrated}sha256: {report.sha256}\n"
        f"time: {report.seconds:.1f} s{resumed}{warnings}"
    )
