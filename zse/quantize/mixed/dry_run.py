"""A plan without a conversion."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.models.storage import Storage
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.choice import SchemeChoice
from zse.quantize.mixed.mix import Mix
from zse.quantize.place_of_work import choose_device
from zse.quantize.report import ConversionProgress, stage
from zse.quantize.source import resolve_source
from zse.quantize.text_files import collect_sections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.quantize.mixed.plan import MixedPlan
    from zse.quantize.options import ConversionOptions
    from zse.settings import Settings


def plan_model(
    model: str | Path,
    options: ConversionOptions,
    settings: Settings,
    *,
    progress: Callable[[ConversionProgress], None] = lambda _now: None,
) -> MixedPlan:
    """Return the schemes that a conversion under a target would give; nothing is written.

    Raises:
        UsageError: There is no target, or an option has no meaning.
        ZSEError: What ``convert_model`` raises.
    """
    budget = options.budget
    if budget is None:
        raise UsageError("--dry-run shows what a target leads to: give --target-bits")
    texts, text = options.texts(), options.calibration()
    device = choose_device(options.device)
    plans: list[MixedPlan] = []
    source = resolve_source(
        model,
        settings,
        revision=options.revision,
        check=texts.check_names,
        progress=stage(progress, "fetch"),
    )
    with closing(source), Checkpoint(source.path) as checkpoint:
        groups = SchemeChoice(Storage(lm_head=options.lm_head), checkpoint).groups()
        sections = collect_sections(checkpoint, texts)
        Mix(budget, plans.append).of(checkpoint, groups, sections, text, progress, device)
    return plans[0]
