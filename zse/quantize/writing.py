"""From a checkpoint that was found to the file of a model, on this machine.

What is made follows from the checkpoint and the recipe alone: the same bytes, however often a run
was killed on the way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.format.writer import ZSEWriter
from zse.models.storage import AS_ASKED, Storage
from zse.quantize.calibrate.calibrator import Calibrator, rounding_of
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.choice import SchemeChoice
from zse.quantize.merging import merging_of
from zse.quantize.place_of_work import CPU, within_memory_of
from zse.quantize.report import ConversionProgress, Written
from zse.quantize.stream import TensorStream, Work
from zse.quantize.text_files import TextOptions, check_texts, collect_sections
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from zse.models.storage import Int8Instead
    from zse.quantize.calibrate.texts import CalibrationText
    from zse.quantize.choice import Groups
    from zse.quantize.mixed.mix import Mix
    from zse.quantize.source import Source

    Notify = Callable[[ConversionProgress], None]


@record
class Recipe:
    """What is made of a checkpoint, and where it is computed."""

    storage: Storage
    """How weights are kept."""
    texts: TextOptions = TextOptions()
    """Whose tokenizer and template."""
    calibration: CalibrationText | None = None
    """What the model reads, if anything."""
    mix: Mix | None = None
    """What is asked for where each weight gets a scheme of its own."""
    adapters: tuple[Path, ...] = ()
    """Folders of what is added to the weights."""
    medusa: Path | None = None
    """Folder of heads that guess, which are kept behind the model."""
    threads: int = 0
    """How many compute on a CPU; 0 means as many as there are cores."""
    device: torch.device = CPU


def convert_source(
    source: Source,
    target: Path,
    recipe: Recipe,
    *,
    resume: bool = False,
    progress: Notify | None = None,
) -> Written:
    """Convert a checkpoint that was found already to a local file, whatever is there.

    Args:
        source: The checkpoint.
        target: The file; a killed run leaves its work beside it.
        recipe: What is made of it.
        resume: Go on with what a killed run left, and keep what is done if this run fails.
        progress: Called after each chunk.

    Raises:
        ZSEError: As ``convert_model``, for all that is not about finding and naming.
    """
    notify = progress or (lambda _now: None)
    with Checkpoint(source.path, recipe.medusa) as checkpoint:
        checkpoint.merging = merging_of(checkpoint, recipe.adapters)
        choice = SchemeChoice(recipe.storage, checkpoint)
        sections = collect_sections(checkpoint, recipe.texts)
        warnings = [*check_texts(dict(sections), checkpoint.spec, recipe.texts), *choice.notes()]
        groups, not_as_asked = _planned(checkpoint, recipe, choice, sections, notify)
        calibrator = None
        if recipe.calibration is not None:
            calibrator = Calibrator(checkpoint, recipe.calibration, dict(sections), recipe.device)
        with ZSEWriter(
            target,
            architecture=checkpoint.spec.family,
            model_config=checkpoint.spec.header,
            provenance=_provenance(source, recipe, choice.options, calibrator, checkpoint),
            resume=resume,
        ) as writer:
            for name, data in sections:
                writer.add_section(name, data)
            writer.plan([(name, [planned for _, planned in items]) for name, items in groups])
            completed = writer.completed_groups
            _write_groups(checkpoint, writer, groups, recipe, notify, calibrator)
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


def _planned(
    checkpoint: Checkpoint,
    recipe: Recipe,
    choice: SchemeChoice,
    sections: Sequence[tuple[str, bytes]],
    notify: Notify,
) -> tuple[Groups, Int8Instead]:
    """Return each tensor with the scheme it gets, and which of them nobody asked for."""
    groups = choice.groups()
    if recipe.mix is None:
        return groups, choice.options.count_int8_instead(checkpoint.plan)
    mixed = recipe.mix.of(checkpoint, groups, sections, recipe.calibration, notify, recipe.device)
    return mixed, AS_ASKED


def _provenance(
    source: Source,
    recipe: Recipe,
    storage: Storage,
    calibrator: Calibrator | None,
    checkpoint: Checkpoint,
) -> dict[str, Any]:
    """Return what a file's header says of how it came to be."""
    merging = checkpoint.merging
    return {
        "source": source.name,
        "revision": source.revision,
        "tool": f"zse {__version__}",
        "options": storage.to_json(),
        **recipe.texts.to_json(),
        **({} if calibrator is None else {"calibration": calibrator.facts}),
        **({} if merging is None else merging.to_json()),
        **({} if checkpoint.medusa is None else {"medusa": checkpoint.medusa.to_json()}),
        **({} if recipe.mix is None else {"target": recipe.mix.budget.to_json()}),
    }


def _left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not (names := checkpoint.left_out):
        return ()
    return (f"{len(names)} tensors that have no part in texts, such as {names[0]}, were left out.",)


def _write_groups(
    checkpoint: Checkpoint,
    writer: ZSEWriter,
    groups: Groups,
    recipe: Recipe,
    notify: Notify,
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
        TensorStream(
            checkpoint, writer, on_bytes, num_workers=recipe.threads, device=recipe.device
        ) as stream,
        within_memory_of(recipe.device),
    ):
        if calibrator is None:
            stream.write(
                Work(weight=tensor, planned=planned)
                for name, items in groups
                if name not in completed
                for tensor, planned in items
            )
            return
        for name, items in groups:
            is_new, known = name not in completed, {}
            if name in walked:
                known = calibrator.walk(
                    name, is_counting=is_new, size_bytes=walked[name], on_bytes=on_bytes
                )
            for tensor, planned in items if is_new else ():
                rounding = rounding_of(known.pop(tensor.name, None), planned)
                # One at a time: what is known of the inputs of several would lie in memory.
                stream.write([Work(weight=tensor, planned=planned, rounding=rounding)])
