"""Which speculation an engine has: what was asked for, as far as the model and its device can."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.device.open import runs_on_gpu
from zse.engine.drafting.checks import OWN_WAYS
from zse.errors import UnsupportedModelError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.drafting.speculator import Speculator
    from zse.engine.drafting.token_states import TokenStates
    from zse.format.model_file import ModelFile
    from zse.models.runner import ModelRunner
    from zse.options import LoadOptions
    from zse.settings import Settings

_LOG = logging.getLogger("zse.engine")


@record
class Speculation:
    """Who guesses for an engine."""

    begin: Callable[[], Speculator]
    """Called once, behind the first token of all."""
    collect_states: Callable[[], TokenStates] | None = None
    """Makes the place of a sequence's states, from the first step on; None: nobody reads them."""


def speculation_by_texts(runner: ModelRunner, options: LoadOptions) -> Speculation | None:
    """Return who guesses what stood before, if the options have texts guessed from."""
    asked = options.speculation.speculate
    if asked == "auto" and runs_on_gpu(runner.device.name):
        return None  # a GPU computes drafts with other roundings than single tokens
    if asked not in ("auto", "suffix") or not _checks_drafts(runner, asked):
        return None
    return Speculation(begin=_begin_with_texts)


def speculation_of(
    runner: ModelRunner, reader: ModelFile, options: LoadOptions, settings: Settings
) -> Speculation | None:
    """Return who guesses by more than texts, where that is asked for and of use: it is loaded.

    Raises:
        UsageError: No draft model was named, or the file has no head that guesses.
        UnsupportedModelError: The model cannot guess so, or not on this device.
        FormatError, DeviceError: As ``load_runner``.
    """
    asked = options.speculation.speculate
    if has_draft_model(options):
        asked = "model"
    if runner.is_encoder or asked not in ("model", *OWN_WAYS):
        return None
    if not _checks_drafts(runner, asked):
        return None
    from zse.engine.drafting import opening  # which nobody else needs

    if asked == "model":
        speculator = opening.speculator_of_model(runner, reader, options, settings)
        return Speculation(begin=lambda: speculator)
    _check_serves_guesses(runner, asked)
    from zse.engine.drafting.speculator import Speculator

    if asked == "early-exit":
        num_layers = options.speculation.early_exit_layers
        layers = opening.drafter_of_layers(runner, num_layers)
        return Speculation(begin=lambda: Speculator(layers, writes_ahead=True))
    if asked == "medusa":
        head = opening.drafter_of_medusa(runner, reader, options, settings)
    else:
        head = opening.drafter_of_head(runner, reader, options, settings)
    collect = opening.collector_of(runner.spec.hidden_size)
    return Speculation(begin=lambda: Speculator(head), collect_states=collect)


def has_draft_model(options: LoadOptions) -> bool:
    """Whether a draft model is to be loaded."""
    named, asked = options.speculation.draft_model, options.speculation.speculate
    return asked == "model" or (asked == "auto" and bool(named))


def _begin_with_texts() -> Speculator:
    from zse.engine.drafting.opening import speculator_of_texts  # behind the first token

    return speculator_of_texts()


def _checks_drafts(runner: ModelRunner, asked: str) -> bool:
    """Whether a model can check drafts; says so where it cannot, and was asked to."""
    if runner.most_drafts:
        return True
    if asked != "auto":
        _LOG.warning("no drafts are checked: the states of this model cannot go back")
    return False


def _check_serves_guesses(runner: ModelRunner, asked: str) -> None:
    needed = "makes_guesses" if asked == "early-exit" else "leaves_states"
    if not getattr(runner, needed, False):
        raise UnsupportedModelError(
            f"--speculate {asked} does not compute on what this model runs on: {runner.device}",
            hint="Choose --speculate suffix, or name a --draft-model.",
        )
    if asked == "early-exit" and runner.streaming is not None:
        raise UnsupportedModelError(
            "layers of this model stream through memory in their order, so the first cannot guess",
            hint="Choose --speculate suffix.",
        )
