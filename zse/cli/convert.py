"""``zse convert``: a checkpoint becomes one .zse file, here or in object storage."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from zse.cli.stopping import clean_stop
from zse.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.quantize.convert import ConversionProgress, ConversionReport

_LINE_SECONDS = 5.0
_WORDS = {"convert": "converting", "upload": "uploading"}


@click.command()
@click.argument("model")
@click.option(
    "-o", "--out", required=True, metavar="OUT", help="The file: a path or s3://bucket/key."
)
@click.option(
    "--quant",
    type=click.Choice(["int4", "nf4", "int8", "fp16", "bf16"]),
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
    type=click.Choice(["auto", "int8", "fp16", "bf16"]),
    default="auto",
    show_default=True,
    help="How the output head is stored; auto is int8 unless --quant is 16-bit.",
)
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what a killed run left; keep what is done if this run fails.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
def command(
    model: str,
    out: str,
    quant: str,
    group_size: str | None,
    lm_head: str,
    revision: str | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Turn MODEL into one .zse file.

    MODEL is a checkpoint folder in Hugging Face form, a hub id such as owner/name (or
    hf://owner/name@revision), or the name of a built-in model (tiny).
    """
    try:
        from zse.quantize.convert import convert_model
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"converting needs the package {error.name}",
            hint='Install it: pip install "zllm-zse[convert]"',
        ) from error

    with clean_stop(), _progress_display() as progress:
        report = convert_model(
            model,
            out,
            quant,
            group_size=int(group_size) if group_size else None,
            lm_head=lm_head,
            revision=revision,
            resume=resume,
            progress=progress,
        )
    click.echo(_summary(report), err=True)
    if as_json:
        click.echo(json.dumps(asdict(report), sort_keys=True))


def _summary(report: ConversionReport) -> str:
    schemes = ", ".join(f"{count} {scheme}" for scheme, count in report.schemes.items())
    resumed = f"\nresumed: {report.resumed_groups} groups" if report.resumed_groups else ""
    return (
        f"wrote: {report.path}\n"
        f"size: {_size(report.size_bytes)} (checkpoint: {_size(report.source_bytes)})\n"
        f"tensors: {report.tensors} ({schemes})\n"
        f"sha256: {report.sha256} (header)\n"
        f"time: {report.seconds:.1f} s{resumed}"
    )


def _size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


@contextmanager
def _progress_display() -> Iterator[Callable[[ConversionProgress], None]]:
    """Yield a callback that shows progress: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _PlainLines()


@contextmanager
def _bar() -> Iterator[Callable[[ConversionProgress], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(progress: ConversionProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(
                    _WORDS[progress.stage],
                    total=progress.total_bytes,
                    completed=progress.done_bytes,
                )
            bar.update(tasks[progress.stage], completed=progress.done_bytes)

        yield show


class _PlainLines:
    """Prints a line on stderr every few seconds: share, bytes, speed, time left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._started = self._printed = clock()
        self._first_bytes = 0

    def __call__(self, progress: ConversionProgress) -> None:
        """Show one report, unless the last line is recent."""
        now = self._clock()
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._started = self._printed = now
            self._first_bytes = progress.done_bytes
            return
        if now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        bytes_per_second = (progress.done_bytes - self._first_bytes) / (now - self._started)
        left_bytes = progress.total_bytes - progress.done_bytes
        left = f", {left_bytes / bytes_per_second:.0f} s left" if bytes_per_second else ""
        click.echo(
            f"{_WORDS[self._stage]}: {progress.done_bytes / progress.total_bytes:.0%}, "
            f"{_size(progress.done_bytes)} of {_size(progress.total_bytes)}, "
            f"{_size(bytes_per_second)}/s{left}",
            err=True,
        )
