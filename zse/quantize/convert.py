"""Checkpoint in, one .zse file out: bounded memory, resumable, the same bytes every time.

The file appears under its name only when it is whole. What makes the bytes the same is that
nothing in them comes from the clock, the machine or the number of threads.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Unpack

from zse.quantize.options import ConversionFields, ConversionOptions, conversion_options
from zse.quantize.output import check_destination, deliver, local_target
from zse.quantize.report import ConversionProgress as ConversionProgress
from zse.quantize.report import ConversionReport as ConversionReport
from zse.quantize.report import stage
from zse.quantize.source import resolve_source
from zse.quantize.writing import convert_source
from zse.settings import load_settings
from zse.store.overwrite import check_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.quantize.mixed.plan import MixedPlan


def convert_model(
    model: str | Path,
    out: str | Path,
    quantization: str | None = None,
    *,
    progress: Callable[[ConversionProgress], None] | None = None,
    on_plan: Callable[[MixedPlan], None] | None = None,
    **options: Unpack[ConversionFields],
) -> ConversionReport:
    """Convert a Hugging Face checkpoint to a .zse file.

    Args:
        model: A checkpoint folder, a hub id (``owner/name``), ``s3://bucket/folder/``, or a
            built-in's name.
        out: A path, or ``s3://bucket/key``.
        quantization: ``int4``, ``int3``, ``int2``, ``nf4``, ``nl4``, ``mxfp4``, ``int8``, ``fp16``
            or ``bf16``; None means ``int4``, and for a checkpoint that came quantized what it has.
        progress: Called after each chunk.
        on_plan: Called with the schemes under a target, before anything is written.
        options: Everything else: the fields of ``zse.quantize.options.ConversionOptions``, such as
            ``group_size``, ``tokenizer``, ``calibrate``, ``target_bits``, ``resume`` and ``force``.

    Returns:
        Sizes, digests, schemes and warnings.

    Raises:
        UsageError: An option has no meaning, or the output is one of the checkpoint's files.
        WouldReplaceError: The output exists already, or lies inside the checkpoint.
        NotFoundError: The model or the output's folder does not exist.
        RefusedError: The checkpoint holds pickle.
        TokenizerMissingError: The checkpoint has no tokenizer.
        ConversionError: The checkpoint is incomplete, inconsistent or not supported.
        LoRAError: An adapter is damaged, or for another model.
        DiskFullError: The file does not fit.
        DeviceError: The GPU has too little free memory.
        StoreError: The upload failed.
    """
    asked = conversion_options(quantization, **options)
    return convert_with(model, out, asked, progress=progress, on_plan=on_plan)


def convert_with(
    model: str | Path,
    out: str | Path,
    options: ConversionOptions,
    *,
    progress: Callable[[ConversionProgress], None] | None = None,
    on_plan: Callable[[MixedPlan], None] | None = None,
) -> ConversionReport:
    """Convert a checkpoint as these options say; else as ``convert_model``."""
    settings = load_settings()
    recipe = options.recipe(on_plan, threads=settings.serve.load.device.threads)
    notify = progress or (lambda _now: None)
    started = time.monotonic()
    destination = check_destination(out, settings)
    # A checkpoint may take an hour to come.
    check_output(destination, settings, force=options.force)
    source = resolve_source(
        model,
        settings,
        revision=options.revision,
        check=recipe.texts.check_names,
        progress=stage(notify, "fetch"),
    )
    with closing(source):
        check_output(
            destination,
            settings,
            force=options.force or not destination.is_local,
            inputs=source.files() + recipe.texts.files(),
            folder=source.folder,
        )
        with local_target(destination, settings.cache_dir) as target:
            written = convert_source(source, target, recipe, resume=options.resume, progress=notify)
            sha256 = deliver(target, destination, settings, notify)
            return ConversionReport(
                path=destination.url,
                size_bytes=target.stat().st_size,
                sha256=sha256,
                seconds=time.monotonic() - started,
                tensors=sum(written.schemes.values()),
                **asdict(written),
            )
