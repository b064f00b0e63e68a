"""A conversion under a budget: its plan is made, told, and put in place of one scheme for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.quantize.calibrate.calibrator import Calibrator
from zse.quantize.mixed.plan import Budget, MixedPlan
from zse.quantize.mixed.planner import bytes_to_spend, plan_mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from zse.quantize.calibrate.texts import CalibrationText
    from zse.quantize.checkpoint import Checkpoint
    from zse.quantize.choice import Groups
    from zse.quantize.report import ConversionProgress


@dataclass(frozen=True)
class Mix:
    """A scheme for each weight, whatever comes of it."""

    budget: Budget
    on_plan: Callable[[MixedPlan], None]
    """Called with the plan before anything is written."""

    def of(
        self,
        checkpoint: Checkpoint,
        groups: Groups,
        sections: Sequence[tuple[str, bytes]],
        calibration: CalibrationText | None,
        notify: Callable[[ConversionProgress], None],
        device: torch.device,
    ) -> Groups:
        """Return the groups with the schemes that were chosen.

        Raises:
            UsageError: The budget cannot be met.
            UnsupportedModelError: The model cannot be calibrated, and should be.
        """
        most_bytes = bytes_to_spend(checkpoint, groups, sections, self.budget)
        calibrator = None
        if calibration is not None:
            calibrator = Calibrator(checkpoint, calibration, dict(sections), device)
        plan = plan_mixed(checkpoint, groups, most_bytes, calibrator, notify)
        self.on_plan(plan)
        return [
            (
                name,
                [
                    (weight, plan.chosen[weight.name].planned)
                    if weight.name in plan.chosen
                    else (weight, planned)
                    for weight, planned in items
                ],
            )
            for name, items in groups
        ]


def budget_of(
    bits: float | None, gib: float | None, quantization: str | None, group_size: int | None
) -> Budget | None:
    """Return the budget that was asked for, if any.

    Raises:
        UsageError: A scheme was asked for as well, or two targets.
    """
    if bits is None and gib is None:
        return None
    if quantization is not None or group_size is not None:
        raise UsageError(
            "a target chooses the scheme of each weight, so --quant and --group-size have no use",
            hint="Leave them out, or leave the target out.",
        )
    return Budget(bits=bits, gib=gib)
