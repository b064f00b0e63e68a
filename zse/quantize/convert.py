"""Checkpoint in, one .zse file out: bounded memory, resumable, the same bytes every time.

The file appears under its name only when it is whole. What makes the bytes the same is that
nothing in them comes from the clock, the machine or the number of threads.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.format.writer import ZSEWriter
from zse.models.storage import AS_ASKED, DEFAULT_QUANTIZATION, Storage
from zse.quantize.calibrate.calibrator import Calibrator, rounding_of
from zse.quantize.calibrate.support import check_calibrated
from zse.quantize.calibrate.texts import read_calibration
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.choice import SchemeChoice
from zse.quantize.merging import merging_of
from zse.quantize.mixed.mix import Mix, budget_of
from zse.quantize.output import check_destination, deliver, local_target
from zse.quantize.place_of_work import CPU, choose_device, within_memory_of
from zse.quantize.report import ConversionProgress as ConversionProgress
from zse.quantize.report import ConversionReport as ConversionReport
from zse.quantize.report import Written, stage
from zse.quantize.source import Source, resolve_source
from zse.quantize.stream import TensorStream
from zse.quantize.text_files import TextOptions, check_texts, collect_sections
from zse.settings import load_settings
from zse.store.overwrite import check_output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from zse.quantize.calibrate.texts import CalibrationText
    from zse.quantize.choice import Groups
    from zse.quantize.merging import Merging
    from zse.quantize.mixed.plan import MixedPlan
    from zse.store import Location


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
    place = choose_device(device)
    budget = budget_of(target_bits, target_gib, quantization, group_size)
    storage = Storage(
        quantization=(quantization or DEFAULT_QUANTIZATION).lower(),
        group_size=group_size,
        attention=attention.lower(),
        lm_head=lm_head.lower(),
        is_default=quantization is None,
    )
    texts = TextOptions(
        tokenizer=_path(tokenizer),
        chat_template=_path(chat_template),
        allow_no_tokenizer=allow_no_tokenizer,
    )
    notify = progress or (lambda _now: None)
    text = None
    if calibrate is not None:
        check_calibrated(storage.quantization)
        text = read_calibration(calibrate)
    mix = None if budget is None else Mix(budget, on_plan or (lambda _plan: None))
    adapters = [Path(folder).expanduser() for folder in merge_lora]
    conversion = _Conversion(
        storage, texts, text, mix, adapters, place, resume=resume, force=force, notify=notify
    )
    return conversion.run(model, out, revision)


class _Conversion:
    """How a checkpoint becomes a file: ``run`` does it, from finding the one to naming the other.

    Args:
        storage: How weights are kept.
        texts: Whose tokenizer and template.
        calibration: What the model reads, if anything.
        mix: What is asked for where each weight gets a scheme of its own.
        adapters: What is added to the weights.
        device: Where schemes are computed.
        resume: Go on with what a killed run left.
        force: Replace what is there.
        notify: Called after each chunk.
    """

    def __init__(
        self,
        storage: Storage,
        texts: TextOptions,
        calibration: CalibrationText | None,
        mix: Mix | None,
        adapters: Sequence[Path],
        device: torch.device,
        *,
        resume: bool,
        force: bool,
        notify: Callable[[ConversionProgress], None],
    ) -> None:
        self._storage = storage
        self._texts = texts
        self._calibration = calibration
        self._mix = mix
        self._adapters = adapters
        self._device = device
        self._resume = resume
        self._force = force
        self._notify = notify
        self._settings = load_settings()
        self._started = time.monotonic()

    def run(self, model: str | Path, out: str | Path, revision: str | None) -> ConversionReport:
        settings, texts = self._settings, self._texts
        destination = check_destination(out, settings)
        # A checkpoint may take an hour to come.
        check_output(destination, settings, force=self._force)
        fetching = stage(self._notify, "fetch")
        source = resolve_source(
            model, settings, revision=revision, check=texts.check_names, progress=fetching
        )
        with closing(source):
            check_output(
                destination,
                settings,
                force=self._force or not destination.is_local,
                inputs=source.files() + texts.files(),
                folder=source.folder,
            )
            with local_target(destination, settings.cache_dir) as target:
                return self._write(source, target, destination)

    def _write(self, source: Source, target: Path, destination: Location) -> ConversionReport:
        """Write a file on this machine and bring it to where it belongs."""
        written = convert_source(
            source,
            target,
            self._storage,
            texts=self._texts,
            calibration=self._calibration,
            mix=self._mix,
            adapters=self._adapters,
            threads=self._settings.serve.load.device.threads,
            device=self._device,
            resume=self._resume,
            progress=self._notify,
        )
        sha256 = deliver(target, destination, self._settings, self._notify)
        return ConversionReport(
            path=destination.url,
            size_bytes=target.stat().st_size,
            sha256=sha256,
            seconds=time.monotonic() - self._started,
            tensors=sum(written.schemes.values()),
            **asdict(written),
        )


def convert_source(
    source: Source,
    target: Path,
    options: Storage,
    *,
    texts: TextOptions = TextOptions(),  # noqa: B008 - frozen
    calibration: CalibrationText | None = None,
    mix: Mix | None = None,
    adapters: Sequence[Path] = (),
    threads: int = 0,
    device: torch.device = CPU,
    resume: bool = False,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> Written:
    """Convert a checkpoint that was found already to a local file, whatever is there.

    ``threads`` compute, 0 means as many as there are cores, or a ``device`` does. The other
    arguments and the errors are those of ``convert_model``.
    """
    notify = progress or (lambda _now: None)
    with Checkpoint(source.path) as checkpoint:
        merging = checkpoint.merging = merging_of(checkpoint, adapters)
        choice = SchemeChoice(options, checkpoint)
        groups = choice.groups()
        sections = collect_sections(checkpoint, texts)
        warnings = [*check_texts(dict(sections), checkpoint.spec, texts), *choice.notes()]
        not_as_asked = choice.options.count_int8_instead(checkpoint.plan)
        if mix is not None:
            groups, not_as_asked = (
                mix.of(checkpoint, groups, sections, calibration, notify, device),
                AS_ASKED,
            )
        calibrator = None
        if calibration is not None:
            calibrator = Calibrator(checkpoint, calibration, dict(sections), device)
        with ZSEWriter(
            target,
            architecture=checkpoint.spec.family,
            model_config=checkpoint.spec.header,
            provenance={
                **_provenance(source, choice.options, texts, calibrator, merging),
                **({} if mix is None else {"target": mix.budget.to_json()}),
            },
            resume=resume,
        ) as writer:
            for name, data in sections:
                writer.add_section(name, data)
            writer.plan([(name, [planned for _, planned in items]) for name, items in groups])
            completed = writer.completed_groups
            _write_groups(checkpoint, writer, groups, threads, device, notify, calibrator)
            header = writer.close()
        return Written(
            source_bytes=checkpoint.source_bytes,
            header_sha256=hashlib.sha256(header.to_bytes()).hexdigest(),
            schemes=dict(sorted(Counter(entry.scheme.value for entry in header.tensors).items())),
            int8_instead=not_as_asked.matrices,
            kept_packed=sum(
                tensor.packing is not None for _, items in groups for tensor, _ in items
            ),
            resumed_groups=len(completed),
            calibration={} if calibrator is None else calibrator.facts,
            warnings=(*not_as_asked.warnings, *warnings, *_left_out(checkpoint)),
        )


def _provenance(
    source: Source,
    options: Storage,
    texts: TextOptions,
    calibrator: Calibrator | None,
    merging: Merging | None,
) -> dict[str, Any]:
    """Return what a file's header says of how it came to be."""
    return {
        "source": source.name,
        "revision": source.revision,
        "tool": f"zse {__version__}",
        "options": options.to_json(),
        **texts.to_json(),
        **({} if calibrator is None else {"calibration": calibrator.facts}),
        **({} if merging is None else merging.to_json()),
    }


def _left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not (names := checkpoint.left_out):
        return ()
    return (f"{len(names)} tensors that have no part in texts, such as {names[0]}, were left out.",)


def _write_groups(
    checkpoint: Checkpoint,
    writer: ZSEWriter,
    groups: Groups,
    threads: int,
    device: torch.device,
    notify: Callable[[ConversionProgress], None],
    calibrator: Calibrator | None,
) -> None:
    """Write the tensors of the groups that are not in the file yet."""
    sizes = {
        name: sum(
            checkpoint.length_bytes(piece) for tensor, _ in items for piece in tensor.pieces()
        )
        for name, items in groups
    }
    completed = writer.completed_groups
    # That a text goes through a layer counts as much as that the layer is written.
    walked = {} if calibrator is None else {name: sizes[name] for name in calibrator.layers}
    done_bytes = sum(sizes[name] for name in completed)
    total_bytes = sum(sizes.values()) + sum(walked.values())

    def on_bytes(count: int) -> None:
        nonlocal done_bytes
        done_bytes += count
        notify(ConversionProgress(stage="convert", done_bytes=done_bytes, total_bytes=total_bytes))

    on_bytes(0)
    with (
        TensorStream(checkpoint, writer, on_bytes, num_workers=threads, device=device) as stream,
        within_memory_of(device),
    ):
        for name, items in groups:
            is_new, known = name not in completed, {}
            if calibrator is not None and name in walked:
                known = calibrator.walk(
                    name, is_counting=is_new, size_bytes=walked[name], on_bytes=on_bytes
                )
            for tensor, planned in items if is_new else ():
                rounding = rounding_of(known.pop(tensor.name, None), planned)
                stream.write_tensor(tensor, planned, rounding)


def _path(text: str | Path | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
