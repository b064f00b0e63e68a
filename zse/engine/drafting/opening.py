"""Who guesses for an engine: what was asked for, as far as the model and its device can."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.engine.drafting.speculator import Speculator
from zse.errors import UnsupportedModelError, UsageError
from zse.option import with_values

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.models.runner import ModelRunner
    from zse.options import LoadOptions
    from zse.settings import Settings

_LOG = logging.getLogger("zse.engine")


def speculator_of_texts() -> Speculator:
    """Return one that guesses what followed the same tokens before."""
    from zse.engine.drafting.suffix_drafter import SuffixDrafter

    return Speculator(SuffixDrafter())


def speculator_of_model(
    runner: ModelRunner, reader: ModelFile, options: LoadOptions, settings: Settings
) -> Speculator:
    """Load the draft model and return what guesses by it, or by texts where they know better.

    Args:
        runner: The model that it drafts for.
        reader: Its file.
        options: How that one was loaded; the draft model runs on the same device.
        settings: Where models are looked for.

    Raises:
        UsageError: No draft model was named.
        UnsupportedModelError: It is none that can draft for this model, on this device.
        FormatError, DeviceError: As ``load_runner``.
    """
    from zse.engine.drafting.likelier import LikelierDrafter
    from zse.engine.drafting.model_drafter import ModelDrafter
    from zse.engine.drafting.same_tokens import check_same_tokens
    from zse.engine.drafting.suffix_drafter import SuffixDrafter
    from zse.engine.opening import open_file
    from zse.models.runner import load_runner

    name = options.speculation.draft_model
    if not name:
        raise UsageError(
            "a draft model is to guess, and none was named",
            hint="Name it by --draft-model (ZSE_DRAFT_MODEL).",
        )
    if runner.looks_ahead:
        raise UnsupportedModelError(
            "a draft model was named; it runs beside a model on a CPU only",
            hint="Leave it out, and take --speculate suffix.",
        )
    own = _options_beside(runner, options)
    file = open_file(name, own, settings)
    try:
        check_same_tokens(reader, file)
        draft = load_runner(file, own, cache_dir=settings.cache_dir)
    except BaseException:
        file.close()
        raise
    if draft.is_encoder or draft.num_checkpoints is not None:
        draft.close()
        file.close()
        raise UnsupportedModelError(
            f"{name} cannot draft: it writes no text, or has states that cannot go back",
            hint="Draft with a model that has attention in all of its layers.",
        )
    _LOG.info("tokens are guessed by %s", name)
    drafter = ModelDrafter(
        draft,
        most_tokens=own.batch.max_batch_tokens,
        num_sequences=own.batch.max_sequences,
        vocab_size=runner.vocab_size,
        close_file=file.close,
    )
    return Speculator(LikelierDrafter(SuffixDrafter(), drafter))


def _options_beside(runner: ModelRunner, options: LoadOptions) -> LoadOptions:
    """Return how a draft model is loaded: with room for the tokens that the model has room for.

    On a CPU the memory of a pool comes with its use.
    """
    return with_values(options, {"max_context": 0, "num_blocks": runner.num_blocks, "kernels": ""})
