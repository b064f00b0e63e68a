"""From a model's name to its open file, and on a GPU to weights that are on their way.

The server does this before it imports the engine, so nothing here may need the engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends import begin_arrival
from zse.device.open import check_device, runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.engine.remote import fetch_model
from zse.format.reader import ZSEReader
from zse.records import record
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.backends.gpu.arrival import Arrival
    from zse.format.model_file import ModelFile
    from zse.models.resolve import NamedModel
    from zse.options import LoadOptions

GIB = 1 << 30
StageProgress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done_bytes, total_bytes)``; a stage is ``fetch`` or ``convert``."""


@record
class OpenedModel:
    """A model whose file is open; what ``load_model`` makes an engine of."""

    reader: ModelFile
    arrival: Arrival | None
    """Its weights on their way to a GPU; None on a CPU."""

    def abandon(self) -> None:
        """Give everything back, when no engine is made of it."""
        try:
            if self.arrival is not None:
                self.arrival.abandon()
        finally:
            self.reader.close()


def open_model(
    model: str | Path,
    options: LoadOptions,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> OpenedModel:
    """Open a model's file and, on a GPU, send its weights on their way.

    A file in object storage is not fetched when a GPU can be fed from there.

    Args:
        model: Anything ``locate_model`` accepts.
        options: Where and how.
        phases: Told what takes the time.
        progress: Called while a checkpoint is converted or a file is fetched.

    Raises:
        NotFoundError: There is no such file or model.
        ConversionError: The checkpoint cannot be converted.
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
    """
    check_device(options.device.name)
    with phases("model-file"):
        reader = _open_file(model, options, progress)
    try:
        arrival = begin_arrival(
            options.device.name,
            reader,
            vram_bytes=int(options.device.vram_gib * GIB),
            phases=phases,
        )
    except BaseException:
        reader.close()
        raise
    return OpenedModel(reader=reader, arrival=arrival)


def locate_model(
    model: str | Path, *, quant: str | None = None, progress: StageProgress | None = None
) -> Path:
    """Return the .zse file of a model, converting a checkpoint into the cache when it is none.

    Args:
        model: Anything ``resolve_model`` knows. What is behind an address is fetched, what is a
            checkpoint is converted, both once, into the cache.
        quant: Scheme to convert to.
        progress: Called while the checkpoint is converted or the file is fetched.

    Raises:
        UsageError: The address is malformed.
        NotFoundError: There is no such file or model.
        StoreError: The storage failed.
        ConversionError: The checkpoint cannot be converted.
    """
    path = Path(model)
    if path.suffix == ".zse" and path.is_file():
        return path
    # By name: a file of this machine is served without what knows addresses and converts.
    resolve = importlib.import_module("zse.models.resolve")
    named: NamedModel = resolve.resolve_model(model)
    if isinstance(named, resolve.LocalFile):
        return Path(named.path)
    cache_dir = load_settings().cache_dir
    notify = progress or _ignore
    if isinstance(named, resolve.RemoteFile):
        return fetch_model(named.location, cache_dir, partial(notify, "fetch"))
    builtin = importlib.import_module("zse.quantize.builtin")
    return Path(
        builtin.ensure_zse(
            model,
            quant=quant,
            cache_dir=cache_dir,
            progress=lambda now: notify(now.stage, now.done_bytes, now.total_bytes),
        )
    )


def _open_file(
    model: str | Path, options: LoadOptions, progress: StageProgress | None
) -> ModelFile:
    if "://" in str(model) and runs_on_gpu(options.device.name):
        # By name, as in ``locate_model``.
        resolve = importlib.import_module("zse.models.resolve")
        named = resolve.resolve_model(model)
        if isinstance(named, resolve.RemoteFile):
            opening = importlib.import_module("zse.stream.opening")
            reader: ModelFile = opening.open_remote(named.location)
            return reader
    return ZSEReader(locate_model(model, quant=options.quant, progress=progress))


def _ignore(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Report to nobody."""
