"""A plan without a conversion."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from zse.models.storage import Storage
from zse.quantize.calibrate.texts import read_calibration
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.choice import SchemeChoice
from zse.quantize.mixed.mix import Mix
from zse.quantize.place_of_work import CPU
from zse.quantize.report import ConversionProgress, stage
from zse.quantize.source import resolve_source
from zse.quantize.text_files import TextOptions, collect_sections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from zse.quantize.mixed.plan import Budget, MixedPlan
    from zse.settings import Settings


def plan_model(
    model: str | Path,
    budget: Budget,
    settings: Settings,
    *,
    lm_head: str = "auto",
    revision: str | None = None,
    texts: TextOptions = TextOptions(),  # noqa: B008 - frozen
    calibrate: str | Path | None = None,
    device: torch.device = CPU,
    progress: Callable[[ConversionProgress], None] = lambda _now: None,
) -> MixedPlan:
    """Return the schemes that a conversion under a budget would give; nothing is written.

    The arguments and the errors are those of ``convert_model``.
    """
    text = None if calibrate is None else read_calibration(calibrate)
    plans: list[MixedPlan] = []
    source = resolve_source(
        model,
        settings,
        revision=revision,
        check=texts.check_names,
        progress=stage(progress, "fetch"),
    )
    with closing(source), Checkpoint(source.path) as checkpoint:
        groups = SchemeChoice(Storage(lm_head=lm_head), checkpoint).groups()
        sections = collect_sections(checkpoint, texts)
        Mix(budget, plans.append).of(checkpoint, groups, sections, text, progress, device)
    return plans[0]
