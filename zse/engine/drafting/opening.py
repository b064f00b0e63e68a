"""Who guesses for an engine: what was asked for, as far as the model and its device can."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.types import MAX_DRAFTS
from zse.device.open import runs_on_gpu
from zse.engine.drafting.speculator import Speculator
from zse.engine.opening import open_file
from zse.errors import UnsupportedModelError, UsageError
from zse.option import with_values
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.arrival import Arrival
    from zse.engine.drafting.drafter import Drafter
    from zse.engine.drafting.token_states import TokenStates
    from zse.format.model_file import ModelFile
    from zse.models.memory import MemoryEstimate
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions
    from zse.settings import Settings

_GPU_TOKENS = 32_768
"""Of all sequences together that a draft model on a GPU has room for."""
_MOST_HEAD_TOKENS = 1024
"""Of prompts that a head on a GPU reads at once: longer steps would take more memory beside."""
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
    from zse.models.runner import load_runner

    name = options.speculation.draft_model
    if not name:
        raise UsageError(
            "a draft model is to guess, and none was named",
            hint="Name it by --draft-model (ZSE_DRAFT_MODEL).",
        )
    file = open_file(name, options, settings)
    try:
        check_same_tokens(reader, file)
        own = _options_beside(runner, options, file)
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


def drafter_of_layers(runner: ModelRunner, num_layers: int) -> Drafter:
    """Return what guesses by a model's first layers; 0: by as many as turn out to be best."""
    from zse.engine.drafting.early_exit_drafter import EarlyExitDrafter
    from zse.engine.drafting.likelier import LikelierDrafter
    from zse.engine.drafting.suffix_drafter import SuffixDrafter

    return LikelierDrafter(SuffixDrafter(), EarlyExitDrafter(runner, num_layers))


def drafter_of_head(
    runner: ModelRunner, reader: ModelFile, options: LoadOptions, settings: Settings
) -> Drafter:
    """Load the head that a model's file has and return what guesses by it, or by texts.

    Raises:
        UsageError: The file has none.
        FormatError, UnsupportedModelError: As ``load_runner``.
    """
    from zse.engine.drafting.checks import head_of
    from zse.engine.drafting.head_drafter import HeadDrafter
    from zse.engine.drafting.likelier import LikelierDrafter
    from zse.engine.drafting.suffix_drafter import SuffixDrafter
    from zse.models.guess import model_of
    from zse.models.runner import load_runner

    spec = model_of(runner.spec, head_of(reader.header, runner.spec))
    own = _options_of_head(runner, reader, options, spec)
    with ExitStack() as undo:
        arrival = None
        if runs_on_gpu(options.device.name):
            arrival = _arrival_of(reader, own, spec)
            undo.callback(arrival.abandon)
        head = load_runner(reader, own, cache_dir=settings.cache_dir, spec=spec, arrival=arrival)
        undo.pop_all()
    _LOG.info("tokens are guessed by a head of the model")
    drafter = HeadDrafter(
        head,
        most_tokens=own.batch.max_batch_tokens,
        num_sequences=own.batch.max_sequences,
        vocab_size=runner.vocab_size,
        close_file=_keep_open,
    )
    return LikelierDrafter(SuffixDrafter(), drafter)


def drafter_of_medusa(
    runner: ModelRunner, reader: ModelFile, options: LoadOptions, settings: Settings
) -> Drafter:
    """Load the heads of Medusa that a model's file has; return what guesses by them, or by texts.

    Raises:
        UsageError: The file has none.
        FormatError, UnsupportedModelError: As ``load_runner``.
    """
    from zse.engine.drafting.checks import medusa_of
    from zse.engine.drafting.likelier import LikelierDrafter
    from zse.engine.drafting.medusa_drafter import MedusaDrafter
    from zse.engine.drafting.suffix_drafter import SuffixDrafter
    from zse.models.medusa import model_of
    from zse.models.runner import load_runner

    spec = model_of(runner.spec, medusa_of(reader.header, runner.spec))
    if runs_on_gpu(options.device.name):
        runner.bind_heads(reader, spec.medusa)
        drafter = MedusaDrafter(runner, spec, runner.release_heads)
    else:
        own = with_values(_options_beside(runner, options), {"num_blocks": 1})
        heads = load_runner(reader, own, cache_dir=settings.cache_dir, spec=spec)
        drafter = MedusaDrafter(heads, spec, heads.close)
    _LOG.info("tokens are guessed by %d heads of Medusa", len(spec.medusa))
    return LikelierDrafter(SuffixDrafter(), drafter)


def collector_of(width: int) -> Callable[[], TokenStates]:
    """Return what makes places for states of so many numbers."""
    from zse.engine.drafting.token_states import TokenStates

    return partial(TokenStates, width)


def _keep_open() -> None:
    """The file is the model's own, which closes it."""


def memory_beside(options: LoadOptions, settings: Settings) -> int:
    """Return the bytes of a GPU that the draft model will take, which its model leaves it.

    Raises:
        FormatError: It is no model file.
    """
    from zse.backends.gpu.budget import MARGIN_BYTES

    with closing(open_file(options.speculation.draft_model, options, settings)) as file:
        return _estimate_of(file).total_bytes + MARGIN_BYTES


def memory_of_head(reader: ModelFile, spec: ModelSpec) -> int:
    """Return the bytes of a GPU that a model's head will take, which its model leaves it.

    Raises:
        UsageError: The file has none.
        FormatError: A tensor of it is missing, or of another shape.
    """
    from zse.backends.gpu.budget import MARGIN_BYTES
    from zse.engine.drafting.checks import head_of
    from zse.models.guess import model_of

    head = model_of(spec, head_of(reader.header, spec))
    return _estimate_of(reader, head).total_bytes + MARGIN_BYTES


def memory_of_medusa(reader: ModelFile, spec: ModelSpec) -> int:
    """Return the bytes of a GPU that a model leaves its heads of Medusa.

    Raises:
        UsageError: The file has none.
        FormatError: A tensor of one is missing, or of another shape.
    """
    from zse.engine.drafting.checks import medusa_of

    names = {head.name for head in medusa_of(reader.header, spec)}
    return sum(group.length_bytes for group in reader.header.groups if group.name in names)


def _arrival_of(reader: ModelFile, options: LoadOptions, spec: ModelSpec) -> Arrival:
    """Send the weights of a model of some of a file's groups on their way to a GPU."""
    from zse.backends.gpu.arrival import Arrival
    from zse.stream.placement import SomeGroups

    placement = SomeGroups(reader.header, _groups_of(reader, spec))
    arrival = Arrival.begin(options.device.name, reader, share=placement)
    assert isinstance(arrival, Arrival)  # a share does not stream
    return arrival


def _groups_of(reader: ModelFile, spec: ModelSpec) -> set[str]:
    """Return the groups of a file that hold the weights of a model."""
    wanted = {weight.name for weight in spec.weights()}
    groups = reader.header.groups
    return {
        group.name
        for group in groups
        if any(entry.name in wanted for entry in reader.tensors_of(group.name))
    }


def _options_of_head(
    runner: ModelRunner, reader: ModelFile, options: LoadOptions, spec: ModelSpec
) -> LoadOptions:
    """Return how a head is loaded: as a draft model is, from the file of its own model."""
    own = _options_beside(runner, options)
    if not runs_on_gpu(options.device.name):
        return own
    most = min(options.batch.max_sequences, MAX_DRAFTS)
    kv_gib = _estimate_of(reader, spec).kv_bytes / GIB
    return with_values(
        own,
        {
            "num_blocks": 0,
            "kv_gib": kv_gib,
            "kv_dtype": "auto",
            "max_running": most,
            "max_batch_tokens": min(options.batch.max_batch_tokens, _MOST_HEAD_TOKENS),
            "kernels": options.device.kernels,
        },
    )


def _options_beside(
    runner: ModelRunner, options: LoadOptions, file: ModelFile | None = None
) -> LoadOptions:
    """Return how a draft model is loaded, or without its file a head.

    On a CPU it has room for the tokens that the model has room for: memory of a pool comes with its
    use. On a GPU a pool is taken whole, so it is a small one; sequences that find no room in it, or
    no slot, go without its drafts.
    """
    own: dict[str, object] = {"max_context": 0, "deterministic": False, "vram_gib": 0.0}
    own |= {"stream": "auto", "resident_layers": 0, "ram_gib": 0.0}  # that is its model's
    if file is None:
        own["stream"] = "off"
    if file is None or not runs_on_gpu(options.device.name):
        return with_values(options, own | {"num_blocks": runner.num_blocks, "kernels": ""})
    most = min(options.batch.max_sequences, MAX_DRAFTS)
    kv_gib = _estimate_of(file).kv_bytes / GIB
    return with_values(options, own | {"num_blocks": 0, "kv_gib": kv_gib, "max_running": most})


def _estimate_of(file: ModelFile, spec: ModelSpec | None = None) -> MemoryEstimate:
    """Estimate what a file's model takes, or one of some of its weights."""
    from zse.engine.requirements import facts_of
    from zse.models.memory import estimate_memory

    facts = facts_of(file.header)
    if spec is not None:
        names = {weight.name for weight in spec.weights()}
        held = tuple(entry for entry in file.header.tensors if entry.name in names)
        facts = replace(facts, spec=spec, tensors=held)
    return estimate_memory(facts, "", on_gpu=True, context_tokens=_GPU_TOKENS)
