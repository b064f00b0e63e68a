"""Checkpoint in, one .zse file out: bounded memory, resumable, the same bytes every time.

The file appears under its name only when it is whole. What makes the bytes the same is that
nothing in them comes from the clock, the machine or the number of threads.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zse.models.storage import DEFAULT_QUANTIZATION, Storage
from zse.quantize.calibrate.support import check_calibrated
from zse.quantize.calibrate.texts import read_calibration
from zse.quantize.mixed.mix import Mix, budget_of
from zse.quantize.output import check_destination, deliver, local_target
from zse.quantize.place_of_work import choose_device
from zse.quantize.report import ConversionProgress as ConversionProgress
from zse.quantize.report import ConversionReport as ConversionReport
from zse.quantize.report import stage
from zse.quantize.source import resolve_source
from zse.quantize.text_files import TextOptions
from zse.quantize.writing import Recipe, convert_source
from zse.settings import load_settings
from zse.store.overwrite import check_output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.quantize.mixed.plan import MixedPlan


def convert_model(
    model: str | Path,
    out: str | Path,
    quantization: str | None = None,
    *,
    group_size: int | None = None,
    attention: str = "auto",
    lm_head: str = "auto",
    revision: str | None = None,
    tokenizer: str | Path | None = None,
    chat_template: str | Path | None = None,
    allow_no_tokenizer: bool = False,
    calibrate: str | Path | None = None,
    target_bits: float | None = None,
    target_gib: float | None = None,
    merge_lora: Sequence[str | Path] = (),
    medusa: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[ConversionProgress], None] | None = None,
    on_plan: Callable[[MixedPlan], None] | None = None,
    device: str = "auto",
) -> ConversionReport:
    """Convert a Hugging Face checkpoint to a .zse file.

    Args:
        model: A checkpoint folder, a hub id (``owner/name``), ``s3://bucket/folder/``, or a
            built-in's name.
        out: A path, or ``s3://bucket/key``.
        quantization: ``int4``, ``int3``, ``int2``, ``nf4``, ``nl4``, ``mxfp4``, ``int8``, ``fp16``
            or ``bf16``; None means ``int4``, and for a checkpoint that came quantized what it has.
        group_size: 128, 64 or 32 (int4, nf4), 64 or 32 (int3, int2), 32 or 16 (nl4); None means 128
            for int4, 64 for int3 and nf4, 32 for int2, 16 for nl4.
        attention: Of what makes queries, keys and values: ``int8``, ``same`` as other linear
            layers, or ``auto``: INT8 beside ``int4`` without a group size, where it is small.
        lm_head: ``auto``, ``int8``, ``fp16`` or ``bf16``.
        revision: Branch, tag or commit of a hub id.
        tokenizer: Folder whose tokenizer is taken instead of the checkpoint's own.
        chat_template: Jinja file that is taken instead of the tokenizer's own template.
        allow_no_tokenizer: Convert a checkpoint that has none.
        calibrate: File with a text that the model reads, so that codes are chosen by what it makes
            of it: plain text, or JSON lines of messages (``.jsonl``); ``sample`` is one that zse
            brings.
        target_bits: Mean bits of a weight of linear layers: each gets a scheme of its own, as its
            errors count. ``quantization`` and ``group_size`` are left out then.
        target_gib: The same, by the size of the whole file.
        merge_lora: Folders of LoRA adapters in PEFT's form, which are added to the weights.
        medusa: Folder of Medusa's heads, which are kept in the file and guess tokens if asked to.
        resume: Go on with what a killed run left, and keep what is done if this run fails.
        force: Replace what ``out`` names, and write inside the checkpoint's folder.
        progress: Called after each chunk.
        on_plan: Called with the schemes under a target, before anything is written.
        device: Where schemes are computed: ``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is a GPU where
            torch sees one.

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
    settings = load_settings()
    budget = budget_of(target_bits, target_gib, quantization, group_size)
    storage = Storage(
        quantization=(quantization or DEFAULT_QUANTIZATION).lower(),
        group_size=group_size,
        attention=attention.lower(),
        lm_head=lm_head.lower(),
        is_default=quantization is None,
    )
    if calibrate is not None:
        check_calibrated(storage.quantization)
    recipe = Recipe(
        storage=storage,
        texts=TextOptions(
            tokenizer=_path(tokenizer),
            chat_template=_path(chat_template),
            allow_no_tokenizer=allow_no_tokenizer,
        ),
        calibration=None if calibrate is None else read_calibration(calibrate),
        mix=None if budget is None else Mix(budget, on_plan or (lambda _plan: None)),
        adapters=tuple(Path(folder).expanduser() for folder in merge_lora),
        medusa=_path(medusa),
        threads=settings.serve.load.device.threads,
        device=choose_device(device),
    )
    notify = progress or (lambda _now: None)
    started = time.monotonic()
    destination = check_destination(out, settings)
    # A checkpoint may take an hour to come.
    check_output(destination, settings, force=force)
    source = resolve_source(
        model,
        settings,
        revision=revision,
        check=recipe.texts.check_names,
        progress=stage(notify, "fetch"),
    )
    with closing(source):
        check_output(
            destination,
            settings,
            force=force or not destination.is_local,
            inputs=source.files() + recipe.texts.files(),
            folder=source.folder,
        )
        with local_target(destination, settings.cache_dir) as target:
            written = convert_source(source, target, recipe, resume=resume, progress=notify)
            sha256 = deliver(target, destination, settings, notify)
            return ConversionReport(
                path=destination.url,
                size_bytes=target.stat().st_size,
                sha256=sha256,
                seconds=time.monotonic() - started,
                tensors=sum(written.schemes.values()),
                **asdict(written),
            )


def _path(text: str | Path | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
