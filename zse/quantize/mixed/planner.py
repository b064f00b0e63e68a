"""Measures every weight of a checkpoint and chooses its scheme, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.layout import PlannedFile, plan_layout
from zse.quantize.mixed.plan import (
    MixedPlan,
    choose,
    length_bytes,
    no_worse_than_one_for_all,
    num_weights,
    room_above,
)
from zse.quantize.mixed.sensitivity import forms_of, options_of
from zse.quantize.report import ConversionProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.format.layout import PlannedTensor
    from zse.models.weights import WeightSpec
    from zse.quantize.calibrate.calibrator import Calibrator
    from zse.quantize.checkpoint import Checkpoint
    from zse.quantize.mixed.plan import Budget, Option

    Groups = Sequence[tuple[str, Sequence[tuple[WeightSpec, PlannedTensor]]]]

_PAGE = 4096
"""What a group of weights may take more because of where it ends."""
STAGE = "measure"


def bytes_to_spend(
    checkpoint: Checkpoint,
    groups: Groups,
    sections: Sequence[tuple[str, bytes]],
    budget: Budget,
) -> int:
    """Return the bytes that a budget leaves for the weights whose schemes are chosen.

    Known before a weight or a text is read.

    Args:
        checkpoint: Open.
        groups: Every weight and how it is stored if it is none of these.
        sections: What else lies in the file.
        budget: What is asked for.

    Raises:
        UsageError: The budget cannot be met, or nothing is left to choose.
    """
    forms = (forms_of(weight, checkpoint.spec.dtype) for weight in _to_choose_for(groups))
    smallest = [min(each, key=length_bytes) for each in forms]
    if not smallest:
        raise UsageError("this checkpoint has no matrix whose scheme could be chosen")
    if budget.bits is not None:
        most = int(budget.bits * num_weights(smallest) / 8)
    else:
        most = int((budget.gib or 0.0) * 2**30) - _other_bytes(
            checkpoint, groups, sections, smallest
        )
    room_above(smallest, most)
    return most


def plan_mixed(
    checkpoint: Checkpoint,
    groups: Groups,
    most_bytes: int,
    calibrator: Calibrator | None,
    notify: Callable[[ConversionProgress], None],
) -> MixedPlan:
    """Choose a scheme for each weight of the linear layers.

    Args:
        checkpoint: Open.
        groups: Every weight and how it is stored if it is none of these.
        most_bytes: What the chosen ones may take, as ``bytes_to_spend`` has it.
        calibrator: Says what a text makes of the inputs; it is used up. None: no text is read.
        notify: Called after each group.

    Raises:
        UsageError: Numbers that few bits cannot hold leave no way to meet the budget.
    """
    layers = {layer.name: layer for layer in checkpoint.spec.layers}
    options: list[list[Option]] = []
    for done, (name, items) in enumerate(groups):
        found = {}
        if calibrator is not None and name in layers:
            found = calibrator.walk(name, is_counting=True)
        for weight in _to_choose_for([(name, items)]):
            moments = found.pop(weight.name, ())
            options.append(options_of(checkpoint, weight, layers.get(name), moments))
        notify(ConversionProgress(stage=STAGE, done_bytes=done + 1, total_bytes=len(groups)))
    if calibrator is not None:
        options = no_worse_than_one_for_all(options, most_bytes)
    return choose(options, most_bytes)


def _to_choose_for(groups: Groups) -> list[WeightSpec]:
    return [
        weight
        for _, items in groups
        for weight, _ in items
        if weight.is_product and weight.packing is None
    ]


def _other_bytes(
    checkpoint: Checkpoint,
    groups: Groups,
    sections: Sequence[tuple[str, bytes]],
    smallest: Sequence[PlannedTensor],
) -> int:
    """Return the bytes of a file that are not those of the weights to choose for."""
    by_name = {planned.name: planned for planned in smallest}
    layout = plan_layout(
        PlannedFile(
            architecture=checkpoint.spec.family,
            model_config=checkpoint.spec.header,
            provenance={},
            sections=sections,
            groups=[
                (name, [by_name.get(one.name, one) for _, one in items]) for name, items in groups
            ],
        )
    )
    chosen = sum(map(length_bytes, smallest))
    # A group may end in another page, and the header may need one more.
    return layout.file_size_bytes - chosen + _PAGE * (len(groups) + 1)
