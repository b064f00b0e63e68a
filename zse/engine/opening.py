"""From a model's name to its open file, and on a GPU to weights that are on their way.

The server does this before it imports the engine, so nothing here may need the engine.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zse.backends import begin_arrival, begin_to_map
from zse.device.open import check_device, runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.format.reader import ZSEReader
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.retained import Retained
    from zse.format.model_file import ModelFile
    from zse.options import LoadOptions
    from zse.quantize.locate import StageProgress
    from zse.settings import Settings


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
    settings: Settings,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> OpenedModel:
    """Open the file of what ``locate_model`` accepts and, on a GPU, send its weights on their way.

    A file in object storage is not fetched when a GPU can be fed from there. ``phases`` are told
    what takes the time, ``progress`` how far a conversion or a download is.

    Raises:
        NotFoundError: There is no such file or model.
        ConversionError: The checkpoint cannot be converted.
        FormatError: The file is damaged.
        DeviceError: The device is absent or too small.
    """
    return send_weights(
        open_file(model, options, settings, phases=phases, progress=progress), options, phases
    )


def open_file(
    model: str | Path,
    options: LoadOptions,
    settings: Settings,
    *,
    phases: Phases = no_phases,
    progress: StageProgress | None = None,
) -> ModelFile:
    """Do the first half of ``open_model``, which needs no device."""
    check_device(options.device.name)
    with phases("model-file"):
        return _open_file(model, options, settings, progress)


def send_weights(
    reader: ModelFile,
    options: LoadOptions,
    phases: Phases = no_phases,
    retained: Retained | None = None,
) -> OpenedModel:
    """Do the second half, which waits for the GPU; the reader is closed where it fails."""
    try:
        arrival = begin_arrival(options.device, reader, phases=phases, retained=retained)
        if arrival is None:
            begin_to_map(reader)
    except BaseException:
        reader.close()
        raise
    return OpenedModel(reader=reader, arrival=arrival)


def _open_file(
    model: str | Path, options: LoadOptions, settings: Settings, progress: StageProgress | None
) -> ModelFile:
    path = Path(model)
    if path.suffix == ".zse" and path.is_file():
        return ZSEReader(path)  # without what knows addresses and converts
    from zse.models.resolve import LocalFile, RemoteFile, resolve_model

    named = resolve_model(model)
    if isinstance(named, LocalFile):
        return ZSEReader(named.path)
    if isinstance(named, RemoteFile):
        if runs_on_gpu(options.device.name):
            from zse.stream.opening import open_remote

            return open_remote(named.location, settings)
        from zse.store.cache import Cache

        notify = None if progress is None else partial(progress, "fetch")
        return ZSEReader(Cache(settings).fetch(named.location, notify))
    # Only a checkpoint needs what converts, which images leave out.
    from zse.quantize.locate import locate_model

    return ZSEReader(locate_model(model, settings, quant=options.quant, progress=progress))
