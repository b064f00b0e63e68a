"""From a model's open file to an engine core and a tokenizer, for ``LLM`` and for the server."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from zse.device.open import runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.engine.core import EngineCore
from zse.engine.drafting.checks import check_own_guesses
from zse.engine.drafting.choosing import (
    Speculation,
    has_draft_model,
    speculation_by_texts,
    speculation_of,
)
from zse.engine.opening import OpenedModel, open_model
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.option import with_values
from zse.records import record
from zse.text.tokenizer import load_tokenizer
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.backends.types import DeviceUsed
    from zse.engine.encoder_core import AnyCore
    from zse.engine.prefixes.keeper import PrefixKeeper
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings
    from zse.text.tokenizer import Tokenizer

_LOG = logging.getLogger("zse.engine")


@record
class LoadedModel:
    """An open model. Closing the core closes the runner; the reader is closed with ``close``."""

    reader: ModelFile
    core: AnyCore
    tokenizer: Tokenizer
    device: DeviceUsed
    """What the model runs on; where ``auto`` was asked for, what it came to."""

    def settle(self) -> None:
        """Wait until all weights are there; raises what kept them from it. Close it then, too."""
        if isinstance(self.core.runner, ModelRunner):  # the weights of a mesh's are elsewhere
            self.core.runner.settle()

    def close(self) -> None:
        try:
            self.core.close()
        finally:
            self.reader.close()


class FileReading:
    """What a model's file says besides its weights, read while those, or a GPU, are waited for.

    Args:
        reader: The file; it stays open.
        phases: Told what takes the time.
        tokenizer: Of the file, where it has been read before.
        spec: Of the file, where another one of the same shape has it.

    Raises:
        FormatError, UnsupportedModelError: As ``spec_of``.
    """

    def __init__(
        self,
        reader: ModelFile,
        phases: Phases = no_phases,
        tokenizer: Tokenizer | None = None,
        spec: ModelSpec | None = None,
    ) -> None:
        self._tokenizer: Future[Tokenizer] = Future()
        if tokenizer is None:
            pool = ThreadPoolExecutor(1, "zse-tokenizer")
            self._tokenizer = pool.submit(_load_tokenizer, reader, phases)
            pool.shutdown(wait=False)
        else:
            self._tokenizer.set_result(tokenizer)
        try:
            self.spec = spec_of(reader) if spec is None else spec
        except BaseException:
            self.settle()
            raise

    def settle(self) -> None:
        """Wait until the file is no longer read, so that it can be closed."""
        wait([self._tokenizer])

    def tokenizer(self) -> Tokenizer:
        """Wait for the tokenizer; raises what reading it raised."""
        return self._tokenizer.result()


def load_model(
    model: str | Path | OpenedModel,
    options: LoadOptions,
    settings: Settings,
    *,
    progress: StageProgress | None = None,
    num_adapters: int = 0,
) -> LoadedModel:
    """Make an engine as ``begin_model`` does, and wait until all weights are there.

    Raises:
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
        StoreError: The file changed or failed on its way.
    """
    loaded = begin_model(model, options, settings, progress=progress, num_adapters=num_adapters)
    try:
        loaded.settle()
    except BaseException:
        loaded.close()
        raise
    return loaded


def begin_model(
    model: str | Path | OpenedModel,
    options: LoadOptions,
    settings: Settings,
    *,
    reading: FileReading | None = None,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
    num_adapters: int = 0,
    runner_of: Callable[[ModelFile], ModelRunner] | None = None,
) -> LoadedModel:
    """Make an engine for a model whose weights may still be on their way.

    It answers at once, layer by layer as weights arrive; ``settle`` waits until all are there.

    Args:
        model: What ``open_model`` accepts, or what it returned, which is taken over.
        options: How the model runs.
        settings: Where its file may come from, and the cache.
        reading: Of its file, where that has begun already.
        phases: Told what takes the time.
        progress: Told how far the model's file has come.
        num_adapters: Adapters of the largest rank that a GPU has room for, unless the options say
            how much memory they get.
        runner_of: Makes what computes, where that is not this machine.

    Raises:
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
        UsageError, UnsupportedModelError: It cannot guess tokens as the options ask it to.
    """
    opened = model
    if not isinstance(opened, OpenedModel):
        opened = open_model(opened, options, settings, phases=phases, progress=progress)
    reader = opened.reader
    try:
        reading = reading or FileReading(reader, phases)
        check_own_guesses(reader.header, reading.spec, options)
        _set_aside_for_drafts(opened, reading.spec, options, settings)
        options = _with_adapters(opened, options, reading.spec, num_adapters)
        is_whole = opened.ranks is None and runner_of is None  # this process has all blocks
        prefixes = _prefixes_of(reader, options, settings) if is_whole else None
        if runner_of is not None:
            runner = runner_of(reader)
        else:
            runner = _local_runner(opened, reading.spec, options, settings, phases)
        try:
            if opened.ranks is not None:
                with phases("ranks"):
                    opened.ranks.wait_until_ready(runner)
            tokenizer = reading.tokenizer()
            speculation = speculation_of(runner, reader, options, settings)
            core = make_core(runner, options, _end_tokens(reader, tokenizer), speculation)
            if prefixes is not None and isinstance(core, EngineCore):
                prefixes.bring(core)
        except BaseException:
            runner.close()
            raise
    except BaseException:
        if reading is not None:
            reading.settle()
        opened.abandon()
        raise
    _LOG.info("the model runs on %s", runner.device)
    return LoadedModel(reader=reader, core=core, tokenizer=tokenizer, device=runner.device)


def _with_adapters(
    opened: OpenedModel, options: LoadOptions, spec: ModelSpec, num_adapters: int
) -> LoadOptions:
    """Return the options with room for adapters where a device has to set it aside."""
    if opened.ranks is not None:
        options = opened.ranks.options_for(num_adapters)
    if num_adapters and opened.arrival is not None:
        options = with_room_for_adapters(options, spec, num_adapters)
    return options


def _local_runner(
    opened: OpenedModel,
    spec: ModelSpec,
    options: LoadOptions,
    settings: Settings,
    phases: Phases,
) -> ModelRunner:
    return load_runner(
        opened.reader,
        options,
        cache_dir=settings.cache_dir,
        spec=spec,
        arrival=opened.arrival,
        part=None if opened.ranks is None else opened.ranks.part,
        phases=phases,
    )


def _set_aside_for_drafts(
    opened: OpenedModel, spec: ModelSpec, options: LoadOptions, settings: Settings
) -> None:
    """Have a GPU keep memory for the draft model that is to come, or for a head of the model."""
    if opened.arrival is None:
        return
    if options.speculation.draft_model and has_draft_model(options):
        from zse.engine.drafting.opening import memory_beside

        opened.arrival.set_aside(memory_beside(options, settings))
    elif options.speculation.speculate in ("mtp", "medusa") and not spec.is_encoder:
        from zse.engine.drafting.opening import memory_of_head, memory_of_medusa

        is_mtp = options.speculation.speculate == "mtp"
        of_heads = memory_of_head if is_mtp else memory_of_medusa
        opened.arrival.set_aside(of_heads(opened.reader, spec))


def _prefixes_of(
    reader: ModelFile, options: LoadOptions, settings: Settings
) -> PrefixKeeper | None:
    """Begin to read the prefixes that the file has, or that were kept, if there are any."""
    is_named = any(each.name.startswith("prefixes/") for each in reader.header.sections)
    if not (is_named or options.cache.prefix_store):
        return None
    from zse.engine.prefixes.keeper import PrefixKeeper

    name = options.device.name
    kind = "gpu" if runs_on_gpu(name) else "torch" if name == "torch" else "cpu"
    return PrefixKeeper(reader, options, settings, device_kind=kind)


def with_room_for_adapters(options: LoadOptions, spec: ModelSpec, count: int) -> LoadOptions:
    """Return options by which a GPU has room for adapters of the largest rank, or as they say."""
    if options.lora.gpu_gib:
        return options
    from zse.backends.gpu.adapter_image import largest_image_bytes

    needed = min(count, options.lora.max_loaded) * largest_image_bytes(spec, options.lora.max_rank)
    return with_values(options, {"lora_gib": needed / GIB})


def make_core(
    runner: ModelRunner,
    options: LoadOptions,
    end_token_ids: tuple[int, ...] = (),
    speculation: Speculation | None = None,
) -> AnyCore:
    """Return the engine of a model: of one that writes text, or of an encoder.

    Without ``speculation`` the options say whether tokens are guessed from texts.
    """
    if not runner.is_encoder:
        chosen = speculation or speculation_by_texts(runner, options)
        return EngineCore(
            runner,
            options,
            eos_token_ids=end_token_ids,
            begin_speculation=None if chosen is None else chosen.begin,
            collect_states=None if chosen is None else chosen.collect_states,
        )
    from zse.engine.encoder_core import EncoderCore  # which other models do without

    return EncoderCore(runner, options)


def _load_tokenizer(reader: ModelFile, phases: Phases) -> Tokenizer:
    with phases("tokenizer"):
        return load_tokenizer(reader)


def _end_tokens(reader: ModelFile, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Join what the model's configuration and its tokenizer say, in a fixed order."""
    configured = reader.header.model_config.get("eos_token_ids") or ()
    return tuple(dict.fromkeys((*configured, *tokenizer.eos_ids)))
