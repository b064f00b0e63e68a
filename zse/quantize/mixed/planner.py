"""Measures every weight of a checkpoint and chooses its scheme, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.layout import PlannedFile, plan_layout
from zse.quantize.mixed.plan import (
    MixedPlan,
    choose,
    no_worse_than_one_for_all,
    num_weights,
)
from zse.quantize.mixed.sensitivity import options_of
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


def plan_mixed(
    checkpoint: Checkpoint,
    groups: Groups,
    sections: Sequence[tuple[str, bytes]],
    budget: Budget,
    calibrator: Calibrator | None,
    notify: Callable[[ConversionProgress], None],
) -> MixedPlan:
    """Choose a scheme for each weight of the linear layers.

    Args:
        checkpoint: Open.
        groups: Every weight and how it is stored if it is none of these.
        sections: What else lies in the file.
        budget: What is asked for.
        calibrator: Says what a text makes of the inputs; it is used up. None: no text is read.
        notify: Called after each group.

    Raises:
        UsageError: The budget cannot be met, or nothing is left to choose.
    """
    layers = {layer.name: layer for layer in checkpoint.spec.layers}
    options: list[list[Option]] = []
    for done, (name, items) in enumerate(groups):
        found = {}
        if calibrator is not None and name in layers:
            found = calibrator.walk(name, is_counting=True)
        for weight, _ in items:
            if weight.is_product and weight.packing is None:
                moments = found.pop(weight.name, ())
                options.append(options_of(checkpoint, weight, layers.get(name), moments))
        notify(ConversionProgress(stage=STAGE, done_bytes=done + 1, total_bytes=len(groups)))
    if not options:
        raise UsageError("this checkpoint has no matrix whose scheme could be chosen")
    if budget.bits is not None:
        most = int(budget.bits * num_weights(options) / 8)
    else:
        others = _other_bytes(checkpoint, groups, sections, options)
        most = int((budget.gib or 0.0) * 2**30) - others
    if calibrator is not None:
        options = no_worse_than_one_for_all(options, most)
    return choose(options, most)


def _other_bytes(
    checkpoint: Checkpoint,
    groups: Groups,
    sections: Sequence[tuple[str, bytes]],
    options: Sequence[Sequence[Option]],
) -> int:
    """Return the bytes of a file that are not those of the weights to choose for."""
    smallest = {
        option.planned.name: option
        for option in (min(each, key=lambda one: one.length_bytes) for each in options)
    }
    layout = plan_layout(
        PlannedFile(
            architecture=checkpoint.spec.family,
            model_config=checkpoint.spec.header,
            provenance={},
            sections=sections,
            groups=[
                (
                    name,
                    [
                        smallest[one.name].planned if one.name in smallest else one
                        for _, one in items
                    ],
                )
                for name, items in groups
            ],
        )
    )
    chosen = sum(option.length_bytes for option in smallest.values())
    # A group may end in another page, and the header may need one more.
    return layout.file_size_bytes - chosen + _PAGE * (len(groups) + 1)
