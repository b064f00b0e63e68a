"""Checkpoint in, one .zse file out: bounded memory, resumable, the same bytes every time.

The file appears under its name only when it is whole. What makes the bytes the same is that
nothing in them comes from the clock, the machine or the number of threads.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zse import __version__
from zse.errors import UsageError
from zse.format.writer import ZSEWriter
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.options import QuantizationOptions
from zse.quantize.sections import collect_sections
from zse.quantize.source import Source, resolve_source
from zse.quantize.stream import TensorStream, single_threaded_torch
from zse.records import record
from zse.settings import load_settings
from zse.store import Location, open_writable, parse_location, put_file
from zse.store.cache_use import using
from zse.store.overwrite import check_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from zse.format.layout import PlannedTensor
    from zse.models.names import TensorSource


@record
class ConversionProgress:
    """How far a conversion is."""

    stage: str
    """``convert`` or ``upload``."""
    done_bytes: int
    """Of the checkpoint while converting, of the file while uploading."""
    total_bytes: int


@record
class ConversionReport:
    """What a conversion made."""

    path: str
    """Where the file is: a local path, or the s3:// location."""
    size_bytes: int
    source_bytes: int
    """Size of the checkpoint's weight files."""
    sha256: str
    """Of the header, which lists the digest of everything else in the file."""
    seconds: float
    tensors: int
    schemes: Mapping[str, int]
    """Scheme -> number of tensors stored in it."""
    resumed_groups: int
    """Groups that an earlier run had finished."""


def convert_model(
    model: str | Path,
    out: str | Path,
    quantization: str = "int4",
    *,
    group_size: int | None = None,
    lm_head: str = "auto",
    revision: str | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> ConversionReport:
    """Convert a Hugging Face checkpoint to a .zse file.

    Args:
        model: A checkpoint folder, a hub id (``owner/name``), or a built-in's name.
        out: A path, or ``s3://bucket/key``.
        quantization: ``int4``, ``nf4``, ``int8``, ``fp16`` or ``bf16``.
        group_size: 128, 64 or 32 (int4, nf4); None means 128 for int4, 64 for nf4.
        lm_head: ``auto``, ``int8``, ``fp16`` or ``bf16``.
        revision: Branch, tag or commit of a hub id.
        resume: Go on with what a killed run left, and keep what is done if this run fails.
        force: Replace what ``out`` names, and write inside the checkpoint's folder.
        progress: Called after each chunk.

    Returns:
        Sizes, digest and schemes.

    Raises:
        UsageError: An option has no meaning, or the output is one of the checkpoint's files.
        WouldReplaceError: The output exists already, or lies inside the checkpoint.
        NotFoundError: The model or the output's folder does not exist.
        RefusedError: The checkpoint holds pickle.
        ConversionError: The checkpoint is incomplete, inconsistent or not supported.
        DiskFullError: The file does not fit.
        StoreError: The upload failed.
    """
    options = QuantizationOptions(quantization=quantization, group_size=group_size, lm_head=lm_head)
    destination = _check_destination(out)
    check_output(destination, force=force)  # a checkpoint may take an hour to come
    source = resolve_source(model, revision=revision)
    check_output(
        destination,
        force=force or not destination.is_local,
        inputs=source.files(),
        folder=source.folder,
    )
    return convert_source(source, destination, options, resume=resume, progress=progress)


def convert_source(
    source: Source,
    destination: Location,
    options: QuantizationOptions,
    *,
    resume: bool = False,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> ConversionReport:
    """Convert a checkpoint that was found already; the rest is as for ``convert_model``."""
    started = time.monotonic()
    notify = progress or _ignore
    with Checkpoint(source.folder) as checkpoint, _local_target(destination) as target:
        job = _Conversion(
            checkpoint=checkpoint, source=source, options=options, target=target, notify=notify
        )
        written = job.run(resume=resume)
        if not destination.is_local:
            put_file(target, destination, progress=_upload_progress(notify))
        return ConversionReport(
            path=destination.url,
            size_bytes=target.stat().st_size,
            source_bytes=checkpoint.source_bytes,
            sha256=written.header_sha256,
            seconds=time.monotonic() - started,
            tensors=sum(written.schemes.values()),
            schemes=written.schemes,
            resumed_groups=written.resumed_groups,
        )


@record
class _Written:
    header_sha256: str
    schemes: dict[str, int]
    resumed_groups: int


@record
class _Conversion:
    """One checkpoint on its way into one local file."""

    checkpoint: Checkpoint
    source: Source
    options: QuantizationOptions
    target: Path
    notify: Callable[[ConversionProgress], None]

    def run(self, *, resume: bool) -> _Written:
        """Write the file."""
        groups = [
            (group.name, [(tensor, self.options.plan_tensor(tensor)) for tensor in group.tensors])
            for group in self.checkpoint.plan
        ]
        sections = collect_sections(self.checkpoint)
        with ZSEWriter(
            self.target,
            architecture=self.checkpoint.model_config.family,
            model_config=self.checkpoint.model_config.to_json(),
            provenance=self._provenance(),
            resume=resume,
        ) as writer:
            for name, data in sections:
                writer.add_section(name, data)
            writer.plan([(name, [planned for _, planned in items]) for name, items in groups])
            completed = set(writer.completed_groups)
            self._write_groups(writer, groups, completed)
            header = writer.close()
        return _Written(
            header_sha256=hashlib.sha256(header.to_bytes()).hexdigest(),
            schemes=dict(sorted(Counter(entry.scheme.value for entry in header.tensors).items())),
            resumed_groups=len(completed),
        )

    def _write_groups(
        self,
        writer: ZSEWriter,
        groups: list[tuple[str, list[tuple[TensorSource, PlannedTensor]]]],
        completed: set[str],
    ) -> None:
        sizes = {
            name: sum(self._stored_bytes(tensor) for tensor, _ in items) for name, items in groups
        }
        total_bytes = sum(sizes.values())
        done_bytes = sum(size for name, size in sizes.items() if name in completed)

        def on_bytes(count: int) -> None:
            nonlocal done_bytes
            done_bytes += count
            self.notify(
                ConversionProgress(stage="convert", done_bytes=done_bytes, total_bytes=total_bytes)
            )

        on_bytes(0)
        threads = load_settings().threads
        with (
            single_threaded_torch(),
            TensorStream(self.checkpoint, writer, on_bytes, num_workers=threads) as stream,
        ):
            for name, items in groups:
                if name in completed:
                    continue
                for tensor, planned in items:
                    stream.write_tensor(tensor, planned)

    def _stored_bytes(self, tensor: TensorSource) -> int:
        return sum(self.checkpoint.tensor(name).length_bytes for name, _ in tensor.sources)

    def _provenance(self) -> dict[str, object]:
        return {
            "source": self.source.name,
            "revision": self.source.revision,
            "tool": f"zse {__version__}",
            "options": self.options.to_json(),
        }


def _check_destination(out: str | Path) -> Location:
    location = parse_location(out)
    if location.is_prefix or (location.is_local and location.path.is_dir()):
        raise UsageError(
            f"{location} is a folder; the output is one file",
            hint="Add a file name, such as model.zse.",
        )
    if not location.is_local:
        open_writable(location)  # what is wrong with it is better known now than afterwards
    return location


@contextmanager
def _local_target(destination: Location) -> Iterator[Path]:
    """Yield the local path to write; for S3, a staging file that is removed afterwards."""
    if destination.is_local:
        yield destination.path
        return
    # Named after the destination, so that a killed run can be resumed.
    key = hashlib.sha256(destination.url.encode()).hexdigest()[:24]
    with using(load_settings().cache_dir, "uploads") as uploads:
        folder = uploads / key
        folder.mkdir(exist_ok=True)
        target = folder / "model.zse"
        try:
            yield target
        finally:
            target.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()


def _upload_progress(notify: Callable[[ConversionProgress], None]) -> Callable[[int, int], None]:
    def report(done_bytes: int, total_bytes: int) -> None:
        notify(ConversionProgress(stage="upload", done_bytes=done_bytes, total_bytes=total_bytes))

    return report


def _ignore(progress: ConversionProgress) -> None:
    """Report to nobody."""
