"""From a model's open file to an engine core and a tokenizer, for ``LLM`` and for the server."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.device.phases import Phases, no_phases
from zse.engine.core import EngineCore
from zse.engine.opening import OpenedModel, open_model
from zse.models.runner import load_runner
from zse.records import record
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from zse.backends.types import DeviceUsed
    from zse.format.model_file import ModelFile
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings
    from zse.text.tokenizer import Tokenizer

_LOG = logging.getLogger("zse.engine")


@record
class LoadedModel:
    """An open model. Closing the core closes the runner; the reader is closed with ``close``."""

    reader: ModelFile
    core: EngineCore
    tokenizer: Tokenizer
    device: DeviceUsed
    """What the model runs on; where ``auto`` was asked for, what it came to."""

    def close(self) -> None:
        try:
            self.core.close()
        finally:
            self.reader.close()


def load_model(
    model: str | Path | OpenedModel,
    options: LoadOptions,
    settings: Settings,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> LoadedModel:
    """Make an engine of what ``open_model`` accepts, or returned: that is taken over.

    Raises:
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
    """
    opened = model
    if not isinstance(opened, OpenedModel):
        opened = open_model(opened, options, settings, phases=phases, progress=progress)
    reader = opened.reader
    try:
        # The tokenizer is parsed while the weights are on their way.
        with ThreadPoolExecutor(1, "zse-tokenizer") as beside:
            loading = beside.submit(_load_tokenizer, reader, phases)
            runner = load_runner(
                reader, options, cache_dir=settings.cache_dir, arrival=opened.arrival, phases=phases
            )
            tokenizer = loading.result()
        core = EngineCore(runner, options, eos_token_ids=_end_tokens(reader, tokenizer))
    except BaseException:
        opened.abandon()
        raise
    _LOG.info("the model runs on %s", runner.device)
    return LoadedModel(reader=reader, core=core, tokenizer=tokenizer, device=runner.device)


def _load_tokenizer(reader: ModelFile, phases: Phases) -> Tokenizer:
    with phases("tokenizer"):
        return load_tokenizer(reader)


def _end_tokens(reader: ModelFile, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Join what the model's configuration and its tokenizer say, in a fixed order."""
    configured = reader.header.model_config.get("eos_token_ids") or ()
    return tuple(dict.fromkeys((*configured, *tokenizer.eos_ids)))
